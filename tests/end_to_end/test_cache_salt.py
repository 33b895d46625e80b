"""Tenants share cached prefixes over HTTP only with those who send the same salt."""

from __future__ import annotations

import httpx2
import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.http_api.serving import serving_http
from tests.end_to_end.chaos.stage import replaying
from tests.end_to_end.chaos.test_demo import tokenizer_of
from tests.patience import PATIENCE_SECONDS

PROMPT = "and so on, and so on, " * 20
# All ask the same engine: each form begins in a way of its own.
FORMS = [
    ("/v1/completions", {"prompt": f"One: {PROMPT}"}),
    ("/v1/completions", {"prompt": [f"Two: {PROMPT}", f"No, {PROMPT}"], "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
    ("/enginewire/generate", {"prompt": f"Four: {PROMPT}"}),
]


@pytest.mark.parametrize(("route", "body"), FORMS, ids=["text", "texts and choices", "chat", "page"])
async def test_a_tenant_has_no_tokens_from_the_cache_of_another(
    demo_target: str, route: str, body: dict[str, object]
) -> None:
    tokenizer = await tokenizer_of(demo_target)
    async with (
        replaying([demo_target], tokenizer.vocabulary) as backend,
        serving_http(TextBackend(backend, tokenizer)) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):

        async def cached(**salt: str) -> int:
            answer = await client.post(route, json={**body, "max_tokens": 2, "temperature": 0, **salt})
            assert answer.status_code == 200, answer.text
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert await cached(cache_salt="tenant-A") == 0
        shared = await cached(cache_salt="tenant-A")
        assert shared > 0
        assert await cached(cache_salt="tenant-B") == 0
        assert await cached() == 0
        assert await cached(cache_salt="tenant-B") == shared
