"""What vLLM counts and nobody outside can, as families of prometheus_client with vLLM's own names.

Collected on the event loop. Imported only where metrics are exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from enginewire.server.engines.interface import MetricsContext

LABELS: Final = ("model_name", "engine")
MEANINGS: Final = {
    "prefix_cache_queries": "Tokens of sequences that began to run and were looked up in the prefix cache.",
    "prefix_cache_hits": "Those of them that were there.",
    "spec_decode_num_drafts": "Drafts of the draft model.",
    "spec_decode_num_draft_tokens": "Tokens of them.",
    "spec_decode_num_accepted_tokens": "Those of them that were accepted.",
}


class VllmMetrics(Collector):
    """`counts` of each rank, by the names in `MEANINGS`; what vLLM has never told of is not exported."""

    def __init__(self, context: MetricsContext, counts: Sequence[Mapping[str, int]]) -> None:
        self._model = context.model
        self._prefix = context.prefix
        self._counts = counts

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration shall not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        for name in {name: None for counts in self._counts for name in counts}:
            counter = CounterMetricFamily(f"{self._prefix}{name}", MEANINGS[name], labels=LABELS)
            for rank, counts in enumerate(self._counts):
                counter.add_metric((self._model, str(rank)), counts[name])
            yield counter


def register(context: MetricsContext, counts: Sequence[Mapping[str, int]]) -> None:
    """Add them to the registry of the context, if it has one."""
    if isinstance(context.registry, CollectorRegistry):
        context.registry.register(VllmMetrics(context, counts))
