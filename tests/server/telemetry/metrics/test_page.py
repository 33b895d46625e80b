"""What the page shows: every documented name, ranks, states, and gauges that return to their base."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st
from prometheus_client.exposition import generate_latest

from enginewire import v1 as pb
from enginewire.server.admission.adapters import AdapterTable
from enginewire.server.admission.live import Discard
from enginewire.server.admission.queue.limits import QueueLimits
from enginewire.server.admission.table import RequestTable
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.lifecycle import CleanupState, DrainPlan, Lifecycle
from enginewire.server.telemetry.metrics.exporter import MetricsExporter
from tests.long import examples
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ask, until_true
from tests.server.telemetry.metrics.scraping import Scrape, documented

LIMITS = QueueLimits(requests=100, tokens=10_000)


class Shown:
    """A lifecycle around an engine, and what is exported of it, without any server."""

    def __init__(
        self, engine: MockerEngine | None = None, prefix: str = "vllm:", adapters: AdapterTable | None = None
    ) -> None:
        self.exporter = MetricsExporter(prefix)
        self.engine = engine or MockerEngine(MockerOptions(max_num_seqs=3))
        self.table = RequestTable(LIMITS, adapters=adapters, observer=self.exporter.requests)
        plan = DrainPlan(deadline=5.0, admission_grace=0.0)
        self.lifecycle = Lifecycle(self.engine, self.table, plan, self.exporter.context)
        self.exporter.show(self.lifecycle)

    async def start(self) -> None:
        await self.lifecycle.start(1)

    def scrape(self) -> Scrape:
        return Scrape(generate_latest(self.exporter.context.registry).decode())

    def collect(self) -> Scrape:
        """The same, never written nor read: quick enough for hundreds of looks."""
        return Scrape(self.exporter.context.registry.collect())


class Ranked(MockerEngine):
    """Two ranks, of which the second one is busy."""

    def load(self) -> pb.Load:
        busy = pb.RankLoad(dp_rank=5, running=2, waiting=1, kv_blocks_used=1, kv_blocks_total=4)
        return pb.Load(ranks=[pb.RankLoad(dp_rank=4), busy], kv_blocks_total=super().load().kv_blocks_total)


async def test_every_name_and_kind_is_documented_and_nothing_else(tmp_path):
    shown = Shown(adapters=AdapterTable(tmp_path, 2))
    await shown.start()
    assert shown.scrape().names() == documented("Of every engine")


async def test_the_adapters_of_live_requests_are_named(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    adapters = AdapterTable(tmp_path, 2)
    shown = Shown(adapters=adapters)
    await shown.start()
    for name in ("one", "two"):
        await adapters.load(shown.engine, name, name)

    def named() -> set[tuple[str, str]]:
        samples = shown.scrape().of_kind("gauge")
        found = [dict(labels) for (name, labels) in samples if name == "vllm:lora_requests_info"]
        return {(labels["running_lora_adapters"], labels["max_lora"]) for labels in found}

    most = str(shown.lifecycle.config.limits.max_loras)
    assert named() == {("", most)}
    context = shown.table.submit(ask("a", routing=pb.RoutingHints(lora_name="two")), Discard(), None)
    assert named() == {("two", most)}
    await shown.table.abort(context, "why")
    await shown.table.wait_idle()
    assert named() == {("", most)}


LOAD = {
    "vllm:num_requests_running": ("running", 1),
    "vllm:num_requests_waiting": ("waiting", 2),
    "enginewire:waiting_tokens": ("waiting_tokens", 3),
    "enginewire:kv_blocks_total": ("kv_blocks_total", 8),
    "enginewire:kv_blocks_cached": ("kv_blocks_cached", 5),
    "enginewire:pending_transfers": ("pending_transfers", 6),
    "enginewire:engine_steps_total": ("step", 7),
    "vllm:num_preemptions_total": ("preemptions", 9),
}
COUNTS = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:prompt_tokens_cached_total": "cached_prompt_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "first_token",
    "vllm:inter_token_latency_seconds": "between_tokens",
    "vllm:request_time_per_output_token_seconds": "per_output_token",
    "vllm:e2e_request_latency_seconds": "whole",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_inference_time_seconds": "inference",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:request_prompt_tokens": "prompt_lengths",
    "vllm:request_generation_tokens": "answer_lengths",
    "vllm:request_params_max_tokens": "max_tokens",
    "vllm:request_params_n": "choices",
}


class Loaded(MockerEngine):
    """Its load has another number in each field."""

    def load(self) -> pb.Load:
        return pb.Load(kv_blocks_used=4, **dict(LOAD.values()))


async def test_every_number_is_shown_under_its_own_name():
    shown = Shown(Loaded(MockerOptions(block_size=4, num_kv_blocks=8)))
    await shown.start()
    totals = shown.exporter.requests.totals
    for number, field in enumerate(COUNTS.values(), 20):
        setattr(totals, field, number)
    for number, field in enumerate(HISTOGRAMS.values(), 40):
        getattr(totals, field).observe(number)
    totals.finished["length"] = 60
    totals.failed[pb.ERROR_REASON_INTERNAL] = 61
    totals.refused[pb.ERROR_REASON_INTERNAL] = 62
    scrape = shown.scrape()
    assert {name: scrape(name) for name in LOAD} == {name: value for name, (_, value) in LOAD.items()}
    assert scrape("vllm:kv_cache_usage_perc") == 0.5
    assert [scrape(name) for name in COUNTS] == [20, 21, 22]
    assert [scrape(f"{name}_sum") for name in HISTOGRAMS] == list(range(40, 52))
    assert scrape("vllm:request_success_total", finished_reason="length") == 60
    assert scrape("enginewire:request_failures_total", reason="internal") == 61
    assert scrape("vllm:admission_rejections_total", reason="internal") == 62
    cache = {"block_size": "4", "num_gpu_blocks": "8", "enable_prefix_caching": "False"}
    assert scrape("vllm:cache_config_info", **cache) == 1


async def test_before_the_start_there_is_only_the_state():
    scrape = Shown().scrape()
    assert set(scrape.names()) == {
        "enginewire:engine_up",
        "enginewire:engine_state",
        "enginewire:drain_state",
        "enginewire:cleanup_state",
    }
    assert scrape("enginewire:engine_up") == 0
    assert scrape("enginewire:engine_state", state="starting") == 1


async def test_each_rank_has_its_own_load():
    shown = Shown(Ranked())
    await shown.start()
    samples = shown.scrape().of_kind("gauge")
    running = {
        dict(labels)["engine"]: value
        for (name, labels), value in samples.items()
        if name == "vllm:num_requests_running"
    }
    assert running == {"4": 0, "5": 2}
    used = [value for (name, _), value in samples.items() if name == "vllm:kv_cache_usage_perc"]
    assert used == [0, 0.25]


async def test_the_prefix_replaces_that_of_vllm_and_nothing_else():
    shown = Shown(prefix="my_engine_")
    await shown.start()
    names = shown.scrape().names()
    assert "my_engine_num_requests_running" in names
    assert not [name for name in names if name.startswith("vllm:")]
    assert "enginewire:engine_up" in names


async def test_a_drain_is_seen_to_its_end():
    shown = Shown()
    await shown.start()
    assert shown.scrape()("enginewire:engine_up") == 1
    async with aclosing(shown.lifecycle.drain()) as progress:
        async for _ in progress:
            pass
    scrape = shown.scrape()
    assert scrape("enginewire:engine_up") == 0
    assert scrape("enginewire:drain_state", state="drained") == 1
    assert scrape("enginewire:drain_state", state="draining") == 0
    assert scrape("enginewire:engine_state", state="draining") == 1


class Stubborn(MockerEngine):
    """Its clean-up waits for a word, and then fails if it is the wrong one."""

    def __init__(self) -> None:
        super().__init__(MockerOptions())
        self.goes_well: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def cleanup(self) -> None:
        await super().cleanup()
        if not await self.goes_well:
            raise RuntimeError("the device does not answer")


@pytest.mark.parametrize(("goes_well", "end"), [(True, "done"), (False, "failed")])
async def test_a_clean_up_is_seen_to_its_end(goes_well, end):
    engine = Stubborn()
    shown = Shown(engine)
    await shown.start()

    def states() -> list[str]:
        scrape = shown.scrape()
        return [state for state in CleanupState if scrape("enginewire:cleanup_state", state=state)]

    assert states() == []
    cleaning = asyncio.create_task(shown.lifecycle.cleanup(abort_in_flight=True))
    await until_true(lambda: states() == ["running"])
    engine.goes_well.set_result(goes_well)
    await cleaning
    assert states() == [end]


actions = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 3), st.integers(1, 20)),
    st.tuples(st.just("abort"), st.integers(0, 9)),
    st.tuples(st.just("turns"), st.integers(1, 5)),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(actions, max_size=12), st.booleans(), st.booleans())
def test_gauges_return_to_their_base_and_counters_never_fall(
    work: list[tuple[object, ...]], fails: bool, is_drained: bool
) -> None:
    asyncio.run(any_work(work, fails, is_drained))


async def any_work(work: list[tuple[object, ...]], fails: bool, is_drained: bool) -> None:
    fault = "forward:r1" if fails else ""
    shown = Shown(MockerEngine(MockerOptions(max_num_seqs=4, num_kv_blocks=64, fault=fault)))
    await shown.start()
    scrapes = [shown.collect()]
    contexts: list[GenerateContext] = []
    num_choices = 0
    for name, *values in work:
        if name == "submit":
            n, max_tokens = values
            asked = ask(f"r{len(contexts)}", max_tokens=max_tokens, sampling_options=pb.SamplingOptions(n=n))
            contexts.append(shown.table.submit(asked, Discard(), None))
            num_choices += n
        elif name == "abort" and contexts:
            await shown.table.abort(contexts[values[0] % len(contexts)], "why")
        else:
            for _ in range(values[0]):
                await asyncio.sleep(0)
        scrapes.append(shown.collect())
    if is_drained:
        await shown.engine.drain()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await shown.table.wait_idle()
    scrapes.append(shown.collect())
    assert scrapes[-1].of_kind("gauge") == scrapes[0].of_kind("gauge")
    counted = [scrape.of_kind("counter", "histogram") for scrape in scrapes]
    for before, after in pairwise(counted):
        for sample, value in before.items():
            assert after[sample] >= value
    ends = [value for (name, _), value in scrapes[-1].samples.items() if name == "vllm:request_success_total"]
    assert sum(ends) == num_choices
    generated = scrapes[-1]("vllm:generation_tokens_total")
    assert generated == shown.engine.load().tokens_generated
    assert scrapes[-1]("enginewire:engine_requests_finished_total") == len(contexts)
    await shown.engine.cleanup()


@pytest.mark.parametrize("model", ["shown", ""])
async def test_the_model_is_called_as_clients_call_it(model):
    shown = Shown()
    await shown.lifecycle.start(1, lambda config: setattr(config, "served_model_name", model))
    labels = {
        dict(labels)["model_name"]
        for (name, labels) in shown.scrape().of_kind("gauge", "histogram")
        if "model_name" in dict(labels)
    }
    assert labels == {model or "mocker"}
