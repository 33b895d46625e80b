"""Names of metrics arrive as they are, whichever Prometheus asks."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from enginewire.metrics.text import metrics_text

OPEN = "application/openmetrics-text;version=1.0.0"
PLAIN = "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain"),
        (f"{OPEN},application/openmetrics-text;version=0.0.1;q=0.75,{PLAIN}", "text/plain"),  # Prometheus 2
        (f"{OPEN};escaping=allow-utf-8;q=0.6,{PLAIN}", "application/openmetrics-text"),  # Prometheus 3
        (f"{OPEN};escaping=underscores,{PLAIN}", "text/plain"),
    ],
)
def test_names_keep_their_colons(accept: str, kind: str) -> None:
    registry = CollectorRegistry()
    Counter("vllm:requests", "Requests.", registry=registry).inc()
    page, content_type = metrics_text(registry, accept)
    assert content_type.startswith(kind)
    names = {
        sample.name for family in text_string_to_metric_families(page.decode()) for sample in family.samples
    }
    assert "vllm:requests_total" in names
