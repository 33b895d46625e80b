"""What a server knows of any engine, as metric families of prometheus_client.

Names are vLLM's where they mean the same, behind a prefix that can be chosen; what vLLM has no name for
begins with `enginewire:`. Labels are the model, the rank, reasons and states, all of which are few. Knows
nothing about how the numbers come about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from enginewire import v1 as pb
from enginewire.metrics.histogram import Histogram
from enginewire.metrics.labels import reason_name
from enginewire.server.lifecycle import CleanupState, Lifecycle
from enginewire.server.telemetry.metrics.totals import Totals

LABELS: Final = ("model_name", "engine")
LEAKED: Final = "KV blocks that are held while no request and no hand-off is there."


class EnginePage(Collector):
    """Collected on the event loop when somebody asks; only the state until the engine has started."""

    def __init__(
        self, lifecycle: Lifecycle, totals: Totals, prefix: str, refused: Mapping[str, int] | None = None
    ) -> None:
        """`refused` are calls by why the guard has refused them."""
        self._refused: Mapping[str, int] = {} if refused is None else refused
        self._lifecycle = lifecycle
        self._totals = totals
        self._prefix = prefix

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration shall not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield from self._states()
        config = self._lifecycle.config
        if config is not None:
            load = self._lifecycle.load()
            model, ranks = shown_name(config), ranks_of(load, config)
            yield self._cache_config(config, str(ranks[0].dp_rank))
            yield from self._adapters(config)
            yield from self._of_ranks(model, ranks)
            yield from self._of_callers()
            yield from self._of_requests((model, str(ranks[0].dp_rank)), load)

    def _states(self) -> Iterator[Metric]:
        now = self._lifecycle
        is_up = now.state == pb.ENGINE_STATE_READY
        yield GaugeMetricFamily("enginewire:engine_up", "1 while the engine accepts requests.", float(is_up))
        for name, meaning, states, state in (
            ("engine_state", "1 for the state of the server.", ENGINE_STATES, now.state),
            ("drain_state", "1 for how far the drain is.", DRAIN_STATES, now.drain_state),
            ("cleanup_state", "1 for how far the clean-up is.", CLEANUP_STATES, now.cleanup_state),
        ):
            family = GaugeMetricFamily(f"enginewire:{name}", meaning, labels=("state",))
            for value, label in states.items():
                family.add_metric((label,), float(value == state))
            yield family

    def _cache_config(self, config: pb.EngineConfig, rank: str) -> Metric:
        caches = config.capabilities.prefix_cache
        labels = {
            "engine": rank,
            "block_size": str(config.kv_cache_block_size),
            "num_gpu_blocks": str(config.total_kv_blocks),
            "enable_prefix_caching": str(caches),
        }
        family = GaugeMetricFamily(
            f"{self._prefix}cache_config_info", "The KV cache, in labels.", labels=tuple(labels)
        )
        family.add_metric(tuple(labels.values()), 1.0)
        return family

    def _adapters(self, config: pb.EngineConfig) -> Iterator[Metric]:
        """Which adapters requests are for. Whether those run or wait, only the engine could say."""
        requests = self._lifecycle.requests
        if requests.adapters is None:
            return
        names = [loaded.name for loaded in requests.adapters.adapters() if requests.uses_adapter(loaded.name)]
        family = GaugeMetricFamily(
            f"{self._prefix}lora_requests_info",
            "Adapters of live requests, in labels; the value is the time.",
            labels=("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
        )
        # Of several the endpoint picker takes the newest.
        family.add_metric((str(config.limits.max_loras), "", ",".join(names)), time.time())
        yield family

    def _of_ranks(self, model: str, ranks: Sequence[pb.RankLoad]) -> Iterator[Metric]:
        for name, meaning, read in RANK_GAUGES:
            family = GaugeMetricFamily(f"{self._prefix}{name}", meaning, labels=LABELS)
            for rank in ranks:
                family.add_metric((model, str(rank.dp_rank)), read(rank))
            yield family

    def _of_callers(self) -> Iterator[Metric]:
        totals = self._totals
        refused = CounterMetricFamily(
            "enginewire:refused_calls", "Calls refused for who made them.", labels=("reason",)
        )
        for reason in ("unauthenticated", "permission_denied"):
            refused.add_metric((reason,), self._refused.get(reason, 0))
        refused.add_metric(("limit",), totals.over_limit)
        yield refused
        family = CounterMetricFamily("enginewire:caller_requests", "Requests that ended.", labels=("caller",))
        for caller, number in sorted(totals.requests_of.items()):
            family.add_metric((caller,), number)
        yield family
        family = CounterMetricFamily(
            "enginewire:caller_tokens", "Tokens of those.", labels=("caller", "kind")
        )
        for labels, number in sorted(totals.tokens_of.items()):
            family.add_metric(labels, number)
        yield family

    def _of_requests(self, labels: Sequence[str], load: pb.Load) -> Iterator[Metric]:
        totals, prefix = self._totals, self._prefix
        is_held = self._lifecycle.requests.live_count or load.pending_transfers
        leaked = 0 if is_held else load.kv_blocks_used
        for name, meaning, value in [*gauges(load), ("kv_blocks_leaked", LEAKED, float(leaked))]:
            gauge = GaugeMetricFamily(f"enginewire:{name}", meaning, labels=LABELS)
            gauge.add_metric(labels, value)
            yield gauge
        for name, meaning, value in counters(prefix, load, totals):
            counter = CounterMetricFamily(name, meaning, labels=LABELS)
            counter.add_metric(labels, value)
            yield counter
        for name, label, meaning, values in counters_by_word(prefix, totals):
            counter = CounterMetricFamily(name, meaning, labels=(*LABELS, label))
            for word, value in sorted(values.items()):
                counter.add_metric((*labels, word), value)
            yield counter
        for name, meaning, histogram in histograms(totals):
            family = HistogramMetricFamily(f"{prefix}{name}", meaning, labels=LABELS)
            family.add_metric(labels, histogram.buckets(), histogram.sum)
            yield family


def shown_name(config: pb.EngineConfig) -> str:
    """What clients call the model."""
    return config.served_model_name or config.model


def ranks_of(load: pb.Load, config: pb.EngineConfig) -> Sequence[pb.RankLoad]:
    """The load of each rank; that of the engine for one that has no ranks."""
    return load.ranks or [
        pb.RankLoad(
            dp_rank=config.data_parallel_start_rank,
            running=load.running,
            waiting=load.waiting,
            kv_blocks_used=load.kv_blocks_used,
            kv_blocks_total=load.kv_blocks_total,
        )
    ]


def _kv_use(rank: pb.RankLoad) -> float:
    return rank.kv_blocks_used / rank.kv_blocks_total if rank.kv_blocks_total else 0.0


ENGINE_STATES: Final[Mapping[object, str]] = {
    pb.ENGINE_STATE_STARTING: "starting",
    pb.ENGINE_STATE_READY: "ready",
    pb.ENGINE_STATE_DRAINING: "draining",
    pb.ENGINE_STATE_STOPPED: "stopped",
    pb.ENGINE_STATE_DEAD: "dead",
}
DRAIN_STATES: Final[Mapping[object, str]] = {
    pb.DRAIN_STATE_GRACE: "grace",
    pb.DRAIN_STATE_DRAINING: "draining",
    pb.DRAIN_STATE_DRAINED: "drained",
    pb.DRAIN_STATE_TIMED_OUT: "timed_out",
}
CLEANUP_STATES: Final[Mapping[object, str]] = {state: state.value for state in CleanupState}
RANK_GAUGES: Final[Sequence[tuple[str, str, Callable[[pb.RankLoad], float]]]] = (
    ("num_requests_running", "Sequences being computed.", lambda rank: rank.running),
    ("num_requests_waiting", "Requests that wait for their turn.", lambda rank: rank.waiting),
    ("kv_cache_usage_perc", "KV blocks in use, 1 is all of them.", _kv_use),
)


def gauges(load: pb.Load) -> list[tuple[str, str, float]]:
    """Name, meaning and value."""
    return [
        ("waiting_tokens", "Prompt tokens in the queue.", load.waiting_tokens),
        ("kv_blocks_total", "KV blocks there are.", load.kv_blocks_total),
        ("kv_blocks_cached", "Unheld KV blocks kept.", load.kv_blocks_cached),
        ("pending_transfers", "Hand-offs that nobody has claimed.", load.pending_transfers),
    ]


def counters(prefix: str, load: pb.Load, totals: Totals) -> list[tuple[str, str, float]]:
    """Name, meaning and value. The first two are as the engine reports them."""
    return [
        (f"{prefix}num_preemptions", "Sequences preempted.", load.preemptions),
        ("enginewire:engine_steps", "Scheduler steps.", load.step),
        ("enginewire:engine_requests_finished", "Requests that ended.", load.requests_finished),
        (f"{prefix}prompt_tokens", "Prompt tokens of requests that got a token.", totals.prompt_tokens),
        (f"{prefix}prompt_tokens_cached", "Those found in the cache.", totals.cached_prompt_tokens),
        (f"{prefix}generation_tokens", "Tokens that were delivered.", totals.generated_tokens),
    ]


def counters_by_word(prefix: str, totals: Totals) -> list[tuple[str, str, str, Mapping[str, int]]]:
    """Name, label, meaning, and a value for each word."""
    return [
        (f"{prefix}request_success", "finished_reason", "Choices by how they ended.", totals.finished),
        ("enginewire:request_failures", "reason", "Requests that failed.", _by_reason(totals.failed)),
        (f"{prefix}admission_rejections", "reason", "Requests not let in.", _by_reason(totals.refused)),
    ]


def histograms(totals: Totals) -> list[tuple[str, str, Histogram]]:
    """Name, meaning and values."""
    return [
        ("time_to_first_token_seconds", "From acceptance to the first token.", totals.first_token),
        ("inter_token_latency_seconds", "From token to token of a choice.", totals.between_tokens),
        (
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a request.",
            totals.per_output_token,
        ),
        ("e2e_request_latency_seconds", "From acceptance to the end.", totals.whole),
        ("request_queue_time_seconds", "From acceptance to the first step.", totals.queue),
        ("request_inference_time_seconds", "From the first step to the end.", totals.inference),
        ("request_prefill_time_seconds", "From the first step to the first token.", totals.prefill),
        ("request_decode_time_seconds", "From the first token to the end.", totals.decode),
        ("request_prompt_tokens", "Prompt tokens of each request.", totals.prompt_lengths),
        ("request_generation_tokens", "Output tokens of each request.", totals.answer_lengths),
        ("request_params_max_tokens", "Output tokens that each request allows.", totals.max_tokens),
        ("request_params_n", "Choices that each request wants.", totals.choices),
    ]


def _by_reason(counts: Mapping[pb.ErrorReason.ValueType, int]) -> dict[str, int]:
    return {reason_name(reason): number for reason, number in counts.items()}
