"""Metrics as Prometheus reads them, with the names that they have.

Needs prometheus_client, and is imported only where metrics are exported.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def metrics_text(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type, in the format that the Accept header prefers.

    Who asks for OpenMetrics without `escaping=allow-utf-8`, as Prometheus 2 does, gets the plain format:
    prometheus_client would write the colons of our names as underscores.
    """
    encoder, content_type = choose_encoder(accept if "escaping=allow-utf-8" in accept else "")
    page: bytes = encoder(registry)
    return page, content_type
