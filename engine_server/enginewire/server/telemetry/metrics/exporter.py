"""Everything behind `--metrics-port`: the counts, the registry, the page, the address.

The one door to prometheus_client: the server imports this module only when it exports metrics.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, ProcessCollector

from enginewire.access.access import OPEN, Access
from enginewire.metrics.text import metrics_text
from enginewire.server.engines.interface import MetricsContext
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.telemetry.metrics.endpoint import MetricsEndpoint
from enginewire.server.telemetry.metrics.page import EnginePage
from enginewire.server.telemetry.metrics.requests import RequestMetrics
from enginewire.tls.metrics import CertificateMetrics

log = logging.getLogger(__name__)


class MetricsExporter:
    """Metrics of one server. Give `requests` to its table, `context` and itself to its lifecycle."""

    def __init__(self, prefix: str) -> None:
        self.requests = RequestMetrics()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.context = MetricsContext(model="", registry=self._registry, prefix=prefix)
        self._endpoint = MetricsEndpoint(self._page)

    def show(self, lifecycle: Lifecycle, access: Access = OPEN) -> None:
        """Export what there is to know about a server and any engine."""
        page = EnginePage(lifecycle, self.requests.totals, self.context.prefix, access.refused)
        self._registry.register(page)

    @property
    def url(self) -> str:
        """Where; "" before it is open."""
        return self._endpoint.url

    async def open(self, host: str, port: int, access: Access = OPEN) -> None:
        """Listen. Raises AddressError."""
        if (tls := access.tls) is not None:
            self._registry.register(CertificateMetrics(lambda: [tls.files]))
        await self._endpoint.open(host, port, access)
        log.info("metrics at %s", self.url)

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._endpoint.close()

    def _page(self, accept: str) -> tuple[bytes, str]:
        return metrics_text(self._registry, accept)
