"""How long the certificates of a program are still valid, for whoever is woken before one is not.

Needs prometheus_client, and is imported only where metrics are exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from enginewire.tls.certificate import CertificateFiles


class CertificateMetrics(Collector):
    """Looks at the files when somebody asks, which also takes new ones into use."""

    def __init__(self, shown: Callable[[], Iterable[CertificateFiles]]) -> None:
        """`shown`: what the program shows to others now, at most one as a server and one as a client."""
        self._shown = shown

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration shall not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        remaining = GaugeMetricFamily(
            "enginewire:certificate_remaining_seconds",
            "How long the certificate in use is still valid.",
            labels=("side",),
        )
        failures = CounterMetricFamily(
            "enginewire:certificate_reload_failures",
            "New certificate files that could not be used.",
            labels=("side",),
        )
        for files in self._shown():
            remaining.add_metric((files.side,), files.remaining_seconds)
            failures.add_metric((files.side,), files.num_failures)
        yield remaining
        yield failures
