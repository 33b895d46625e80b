"""GET /metrics: the state of a backend and its engines in the text format of Prometheus.

Names are vLLM's where they mean the same, so that its dashboards and autoscalers work; what vLLM has no
name for begins with `enginewire:`. Labels are engines, reasons and the model, all of which are few.
Knows nothing about how the numbers come about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from enginewire import v1 as pb
from enginewire.backend.activity.activity import Activity
from enginewire.backend.activity.totals import Totals
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.load_fields import kv_use
from enginewire.backend.frontends.http_api.openai.generate_route import engine_names
from enginewire.backend.replay.retry import RetryBudget
from enginewire.metrics.labels import reason_name
from enginewire.metrics.text import metrics_text
from enginewire.tls.certificate import CertificateFiles
from enginewire.tls.metrics import CertificateMetrics

ENGINE_LABELS: Final = ("model_name", "engine")


class BackendMetrics(Collector):
    """What `/metrics` shows, collected when somebody asks. `engine` is the number of the target, from 0."""

    def __init__(
        self,
        activity: Activity,
        engines: Sequence[Endpoint],
        budget: RetryBudget,
        certificate: CertificateFiles | None = None,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        """`engines` may change while this is used. `certificate`: what callers are shown.

        `refused`: calls by why they were not let in.
        """
        self._refused: Mapping[str, int] = {} if refused is None else refused
        self._activity = activity
        self._engines = engines
        self._budget = budget
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._certificate = certificate
        self._registry.register(CertificateMetrics(self._certificates))
        self.model_name = ""

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that the Accept header prefers."""
        return metrics_text(self._registry, accept)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration shall not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield from self._of_engines()
        yield self._caches()
        yield from self._adapters()
        yield from self._of_requests()
        yield from self._of_latencies(self._activity.totals)

    def _certificates(self) -> Iterable[CertificateFiles]:
        """What callers are shown, and what engines are, which is the same for all of them."""
        towards = (tls.certificate for engine in self._engines if (tls := engine.client.trust.tls))
        return dict.fromkeys(files for files in (self._certificate, *towards) if files is not None)

    def _of_engines(self) -> Iterator[Metric]:
        for name, meaning, read in GAUGES:
            gauge = GaugeMetricFamily(name, meaning, labels=ENGINE_LABELS)
            for endpoint in self._engines:
                gauge.add_metric((self.model_name, str(endpoint.number)), read(endpoint))
            yield gauge
        for name, meaning, count in ENGINE_COUNTERS:
            counter = CounterMetricFamily(name, meaning, labels=ENGINE_LABELS)
            for endpoint in self._engines:
                counter.add_metric((self.model_name, str(endpoint.number)), count(endpoint.load))
            yield counter

    def _caches(self) -> Metric:
        labels = ("engine", "block_size", "num_gpu_blocks", "enable_prefix_caching")
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache, in labels.", labels=labels)
        for endpoint in self._engines:
            if (info := endpoint.client.known_info) is not None:
                size, blocks = info.config.kv_cache_block_size, info.config.total_kv_blocks
                caches = info.config.capabilities.prefix_cache
                family.add_metric((str(endpoint.number), str(size), str(blocks), str(caches)), 1.0)
        return family

    def _adapters(self) -> Iterator[Metric]:
        """As the endpoint picker reads it: the value is the time, so that it finds the newest."""
        known = [info.config for engine in self._engines if (info := engine.client.known_info) is not None]
        room = [config.limits.max_loras for config in known if config.capabilities.lora]
        if not room:
            return
        models = {name for config in known for name in ("", config.model, *engine_names(config))}
        live = [request for request in self._activity.live if request.adapter not in models]
        running = {request.adapter for request in live if request.first_token_at is not None}
        waiting = {request.adapter for request in live} - running
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters of live requests, in labels; the value is the time.",
            labels=labels,
        )
        family.add_metric((str(max(room)), ",".join(sorted(waiting)), ",".join(sorted(running))), time.time())
        yield family

    def _of_requests(self) -> Iterator[Metric]:
        live, totals = self._activity.live, self._activity.totals
        for name, meaning, value in (
            ("enginewire:requests_live", "Requests of this backend that have not ended.", len(live)),
            (
                "enginewire:withheld_characters",
                "Characters that may still become a stop string.",
                sum(request.num_withheld for request in live),
            ),
            (
                "enginewire:retry_budget",
                "What is left for retries, 1 is all; at 0 nothing is sent again.",
                self._budget.share_left,
            ),
        ):
            yield self._one(GaugeMetricFamily(name, meaning, labels=("model_name",)), value)
        for name, meaning, number in total_counters(self._activity):
            yield self._one(CounterMetricFamily(name, meaning, labels=("model_name",)), number)
        yield self._by_reason(
            CounterMetricFamily(
                "vllm:request_success", "Choices by how they ended.", labels=("model_name", "finished_reason")
            ),
            dict(totals.finished),
        )
        yield self._by_reason(
            CounterMetricFamily(
                "enginewire:request_failures", "Requests that failed.", labels=("model_name", "reason")
            ),
            {reason_name(reason): number for reason, number in totals.failed.items()},
        )

        yield self._by_reason(
            CounterMetricFamily(
                "enginewire:refused_calls",
                "Calls refused for who made them.",
                labels=("model_name", "reason"),
            ),
            {"unauthenticated": 0, "permission_denied": 0, **self._refused, "limit": totals.over_limit},
        )
        yield self._by_reason(
            CounterMetricFamily(
                "enginewire:engine_decode_differences",
                "Requests whose engine was wrong about its tokens, with --validate-engine-decode.",
                labels=("model_name", "kind"),
            ),
            dict(totals.engine_differences),
        )

    def _of_latencies(self, totals: Totals) -> Iterator[Metric]:
        for name, meaning, histogram in (
            ("vllm:time_to_first_token_seconds", "From the call to its first token.", totals.first_token),
            ("vllm:inter_token_latency_seconds", "From token to token.", totals.between_tokens),
            ("vllm:e2e_request_latency_seconds", "From the call to its end.", totals.whole),
            ("vllm:request_prompt_tokens", "Prompt tokens of each request.", totals.prompt_lengths),
            ("vllm:request_generation_tokens", "Output tokens of each request.", totals.answer_lengths),
        ):
            family = HistogramMetricFamily(name, meaning, labels=("model_name",))
            family.add_metric((self.model_name,), histogram.buckets(), histogram.sum)
            yield family

    def _one(self, family: GaugeMetricFamily | CounterMetricFamily, value: float) -> Metric:
        family.add_metric((self.model_name,), value)
        return family

    def _by_reason(self, family: CounterMetricFamily, numbers: dict[str, int]) -> Metric:
        for reason, number in sorted(numbers.items()):
            family.add_metric((self.model_name, reason), number)
        return family


GAUGES: Final[Sequence[tuple[str, str, Callable[[Endpoint], float]]]] = (
    ("vllm:num_requests_running", "Sequences being computed.", lambda engine: engine.load.running),
    ("vllm:num_requests_waiting", "Requests in the engine's queue.", lambda engine: engine.load.waiting),
    ("vllm:kv_cache_usage_perc", "KV blocks in use, 1 is all of them.", lambda engine: kv_use(engine.load)),
    ("enginewire:waiting_tokens", "Prompt tokens in the queue.", lambda engine: engine.load.waiting_tokens),
    ("enginewire:kv_blocks_total", "KV blocks there are.", lambda engine: engine.load.kv_blocks_total),
    ("enginewire:kv_blocks_cached", "Unheld KV blocks kept.", lambda engine: engine.load.kv_blocks_cached),
    (
        "enginewire:engine_up",
        "1 while the engine accepts requests.",
        lambda engine: engine.load.state == pb.ENGINE_STATE_READY,
    ),
)
ENGINE_COUNTERS: Final[Sequence[tuple[str, str, Callable[[pb.Load], float]]]] = (
    ("vllm:num_preemptions", "Requests preempted since the engine started.", lambda load: load.preemptions),
    ("enginewire:engine_steps", "Scheduler steps since the engine started.", lambda load: load.step),
)


def total_counters(activity: Activity) -> list[tuple[str, str, float]]:
    """Name, meaning and value."""
    totals = activity.totals
    return [
        ("vllm:prompt_tokens", "Prompt tokens of requests that got a token.", totals.prompt_tokens),
        ("vllm:prompt_tokens_cached", "Those found in the cache.", totals.cached_prompt_tokens),
        ("vllm:generation_tokens", "Tokens passed on.", activity.generated_tokens),
        ("enginewire:retries", "Requests sent once more.", totals.retries),
        ("enginewire:continuations", "Retries that went on in mid-answer.", totals.continuations),
        ("enginewire:decode_errors", "Choices whose tokens were no text.", totals.decode_errors),
        ("enginewire:stopped_here", "Requests that ended before their engine did.", totals.stopped_here),
        ("enginewire:detokenize_seconds", "Time spent on text.", totals.detokenize_seconds),
    ]
