"""What the torch engine exports of its batches."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from enginewire import v1 as pb
from enginewire.server.engines.interface import MetricsContext
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.frontend.metrics import register
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.runner.statistics import BatchStatistics, DraftStatistics
from enginewire.torch_engine.step_thread import LoadSnapshot
from tests.server.step_recorder import Recorder
from tests.server.telemetry.metrics.scraping import Scrape, documented
from tests.torch_engine.tiny import greedy

PROMPT = [5, 9, 33, 7, 100, 12, 8, 21, 9]


def scrape(registry: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(registry).decode())


def test_every_name_and_kind_is_documented_and_nothing_else():
    registry = CollectorRegistry()
    register(MetricsContext("m", registry), LoadSnapshot, BatchStatistics(float))
    assert scrape(registry).names() == documented("Of the torch engine")


def test_every_number_is_shown_under_its_own_name():
    registry, statistics = CollectorRegistry(), BatchStatistics(float)
    snapshot = LoadSnapshot(
        pb.Load(running=1, waiting=90, step=91),
        max_total_tokens=2,
        prefix_cache_queries=3,
        prefix_cache_hits=4,
    )
    decode = statistics.methods["decode"]
    decode.num_succeeded, decode.num_failed = 10, 5
    for number, histogram in enumerate((decode.whole, decode.forward, decode.sampling, decode.update), 20):
        histogram.observe(number)
    register(MetricsContext("m", registry, prefix="x_"), lambda: snapshot, statistics)
    found = scrape(registry)
    assert found("tgi_batch_current_size") == 1
    assert found("tgi_batch_current_max_tokens") == 2
    assert found("x_prefix_cache_queries_total") == 3
    assert found("x_prefix_cache_hits_total") == 4
    ends = [
        found(f"tgi_batch_inference_{end}_total", method="decode") for end in ("count", "success", "failure")
    ]
    assert ends == [15, 10, 5]
    parts = ("inference", "forward", "decode", "filter")
    sums = [found(f"tgi_batch_{part}_duration_sum", method="decode") for part in parts]
    assert sums == [20, 21, 22, 23]


def test_drafts_are_counted_with_their_tokens_and_places():
    registry, statistics = CollectorRegistry(), BatchStatistics(float)
    statistics.drafts = DraftStatistics(3)
    for right in (0, 1, 3):
        statistics.note_draft(3, right)
    register(MetricsContext("m", registry), LoadSnapshot, statistics)
    found = scrape(registry)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [found(f"vllm:spec_decode_{name}_total") for name in names] == [3, 9, 4]
    places = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [found(places, position=str(place)) for place in range(3)] == [2, 1, 1]


def test_joined_batches_are_counted_by_their_reason():
    registry = CollectorRegistry()
    register(MetricsContext("m", registry), lambda: LoadSnapshot(concats=(3, 1)), BatchStatistics(float))
    found = scrape(registry)
    assert found("tgi_batch_concat_total", reason="backpressure") == 3
    assert found("tgi_batch_concat_total", reason="wait_exceeded") == 1


async def test_an_engine_exports_its_steps_and_is_empty_when_idle(model_folder):
    options = TorchEngineOptions(
        model=str(model_folder("llama")), device="cpu", dtype="float32", block_size=4, num_threads=1
    )
    engine = TorchEngine(options)
    await engine.start(1)
    registry = CollectorRegistry()
    bindings = await engine.setup_metrics(MetricsContext("m", registry, prefix="x_"))
    assert bindings.dp_ranks == (0,)
    recorder = Recorder(engine)
    for _ in range(2):
        await recorder.run(greedy(PROMPT, 4))
    found = scrape(registry)
    # Of the second prompt only one token is left to compute.
    assert found("tgi_batch_inference_success_total", method="prefill") == 1
    assert found("tgi_batch_inference_duration_count", method="decode") == 7
    assert found("x_iteration_tokens_total_count") == 8
    assert found("x_prefix_cache_queries_total") == 2 * len(PROMPT)
    assert found("x_prefix_cache_hits_total") == 8
    assert found("tgi_batch_current_size") == 0
    assert found("tgi_batch_current_max_tokens") == 0
    await engine.cleanup()


async def test_without_a_registry_nothing_is_registered(model_folder):
    engine = TorchEngine(TorchEngineOptions(model=str(model_folder("llama")), device="cpu", num_threads=1))
    await engine.start(1)
    assert (await engine.setup_metrics(MetricsContext("m"))).dp_ranks == ()
    await engine.cleanup()
