"""A clock that jumps changes nothing but what says a date: time in logic is `time.monotonic()`."""

from __future__ import annotations

import re

from tests.repository import ROOT

DATES = {
    "proto/enginewire/tls/certificate.py": "whether a certificate is valid, and files are new",
    "proto/enginewire/access/audit.py": "lines of a log have a date",
    "engine_server/enginewire/server/telemetry/spans.py": "spans begin at a date",
    "engine_server/enginewire/server/telemetry/metrics/page.py": "pickers believe the latest LoRA metric",
    "backend_client/enginewire/backend/frontends/http_api/metrics.py": "the same of the backend",
    "engine_server/enginewire/server/services/kv_publisher.py": "vLLM's events of its cache have a date",
    "engine_server/enginewire/vllm_engine/embedding.py": "vLLM orders by the date of arrival",
    "engine_server/enginewire/vllm_engine/requests/builder.py": "vLLM orders by the date of arrival",
    "backend_client/enginewire/backend/frontends/http_api/openai/generate_route.py": "OpenAI's `created`",
    "backend_client/enginewire/backend/frontends/http_api/responses/answer.py": "OpenAI's `completed_at`",
    "backend_client/enginewire/backend/prompting/chat_template.py": "templates may show the date",
    "backend_client/enginewire/backend/frontends/smg/servicer.py": "SMG's loads have a date",
}
DATE = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(")


def test_the_date_is_asked_for_where_a_date_is_meant_and_nowhere_else() -> None:
    places = ("proto", "engine_server", "backend_client")
    files = [path for place in places for path in (ROOT / place).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if DATE.search(path.read_text())}
    assert found == DATES.keys()
