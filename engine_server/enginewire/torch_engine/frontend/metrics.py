"""The torch engine's own metrics, as families of prometheus_client.

Those of batches have TGI's names, the others vLLM's. Collected on the event loop from what the step thread
has published. Imported only where metrics are exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from enginewire.metrics.histogram import Histogram
from enginewire.server.engines.interface import MetricsContext
from enginewire.torch_engine.runner.statistics import BatchStatistics, DraftStatistics, MethodStatistics
from enginewire.torch_engine.step_thread import LoadSnapshot

LABELS: Final = ("model_name", "engine")
RANK: Final = "0"


class BatchMetrics(Collector):
    """What the steps of one engine were like."""

    def __init__(
        self, context: MetricsContext, snapshot: Callable[[], LoadSnapshot], statistics: BatchStatistics
    ) -> None:
        self._labels = (context.model, RANK)
        self._prefix = context.prefix
        self._snapshot = snapshot
        self._statistics = statistics

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration shall not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        snapshot = self._snapshot()
        for name, meaning, read in GAUGES:
            gauge = GaugeMetricFamily(name, meaning, labels=LABELS)
            gauge.add_metric(self._labels, read(snapshot))
            yield gauge
        for name, meaning, read in COUNTERS:
            counter = CounterMetricFamily(f"{self._prefix}{name}", meaning, labels=LABELS)
            counter.add_metric(self._labels, read(snapshot))
            yield counter
        yield self._concats(snapshot)
        yield self._step_tokens()
        yield from self._drafts(self._statistics.drafts or DraftStatistics(0))
        yield from self._by_method()

    def _concats(self, snapshot: LoadSnapshot) -> Metric:
        family = CounterMetricFamily(
            "tgi_batch_concat", "Times that sequences joined a running batch.", labels=(*LABELS, "reason")
        )
        for reason, number in zip(("backpressure", "wait_exceeded"), snapshot.concats, strict=True):
            family.add_metric((*self._labels, reason), number)
        return family

    def _step_tokens(self) -> Metric:
        name, histogram = f"{self._prefix}iteration_tokens_total", self._statistics.num_tokens
        family = HistogramMetricFamily(name, "Tokens computed in each step.", labels=LABELS)
        family.add_metric(self._labels, histogram.buckets(), histogram.sum)
        return family

    def _drafts(self, drafts: DraftStatistics) -> Iterator[Metric]:
        accepted = list(drafts.num_accepted)
        for name, meaning, number in (
            ("num_drafts", "Drafts that were made.", drafts.num_drafts),
            ("num_draft_tokens", "Their tokens.", drafts.num_tokens),
            ("num_accepted_tokens", "Those of them that were right.", sum(accepted)),
        ):
            counter = CounterMetricFamily(f"{self._prefix}spec_decode_{name}", meaning, labels=LABELS)
            counter.add_metric(self._labels, number)
            yield counter
        name, meaning = "num_accepted_tokens_per_pos", "Right tokens by their place in the draft."
        family = CounterMetricFamily(
            f"{self._prefix}spec_decode_{name}", meaning, labels=(*LABELS, "position")
        )
        for position, number in enumerate(accepted):
            family.add_metric((*self._labels, str(position)), number)
        yield family

    def _by_method(self) -> Iterator[Metric]:
        labels = (*LABELS, "method")
        for name, meaning, count in METHOD_COUNTERS:
            counter = CounterMetricFamily(name, meaning, labels=labels)
            for method, statistics in self._statistics.methods.items():
                counter.add_metric((*self._labels, method), count(statistics))
            yield counter
        for name, meaning, read in METHOD_HISTOGRAMS:
            family = HistogramMetricFamily(name, meaning, labels=labels)
            for method, statistics in self._statistics.methods.items():
                histogram = read(statistics)
                family.add_metric((*self._labels, method), histogram.buckets(), histogram.sum)
            yield family


def register(
    context: MetricsContext, snapshot: Callable[[], LoadSnapshot], statistics: BatchStatistics
) -> None:
    """Add the metrics of an engine to the registry of the context, if it has one."""
    if isinstance(context.registry, CollectorRegistry):
        context.registry.register(BatchMetrics(context, snapshot, statistics))


GAUGES: Final[Sequence[tuple[str, str, Callable[[LoadSnapshot], float]]]] = (
    ("tgi_batch_current_size", "Sequences of the batch.", lambda snapshot: snapshot.load.running),
    (
        "tgi_batch_current_max_tokens",
        "Tokens that the batch has when all of its sequences are as long as they may get.",
        lambda snapshot: snapshot.max_total_tokens,
    ),
)
COUNTERS: Final[Sequence[tuple[str, str, Callable[[LoadSnapshot], float]]]] = (
    (
        "prefix_cache_queries",
        "Tokens of sequences that began to run and were looked up in the prefix cache.",
        lambda snapshot: snapshot.prefix_cache_queries,
    ),
    ("prefix_cache_hits", "Those of them that were there.", lambda snapshot: snapshot.prefix_cache_hits),
)
METHOD_COUNTERS: Final[Sequence[tuple[str, str, Callable[[MethodStatistics], float]]]] = (
    ("tgi_batch_inference_count", "Batches.", lambda method: method.num_succeeded + method.num_failed),
    ("tgi_batch_inference_success", "Batches that were computed.", lambda method: method.num_succeeded),
    ("tgi_batch_inference_failure", "Batches that failed.", lambda method: method.num_failed),
)
METHOD_HISTOGRAMS: Final[Sequence[tuple[str, str, Callable[[MethodStatistics], Histogram]]]] = (
    ("tgi_batch_inference_duration", "Seconds of a batch.", lambda method: method.whole),
    ("tgi_batch_forward_duration", "Of them in the model.", lambda method: method.forward),
    ("tgi_batch_decode_duration", "Of them for choosing tokens.", lambda method: method.sampling),
    ("tgi_batch_filter_duration", "Of them for taking note.", lambda method: method.update),
)
