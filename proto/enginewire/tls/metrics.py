"""How long the certificate of our servers is still valid, for whoever is woken before it is not.

Needs prometheus_client, and is imported only where metrics are exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from enginewire.tls.certificate import CertificateFiles


class CertificateMetrics(Collector):
    """Looks at the files when somebody asks, which also takes new ones into use."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration shall not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield GaugeMetricFamily(
            "enginewire:certificate_remaining_seconds",
            "How long the certificate in use is still valid.",
            self._files.remaining_seconds,
        )
        yield CounterMetricFamily(
            "enginewire:certificate_reload_failures",
            "New certificate files that could not be used.",
            self._files.num_failures,
        )
