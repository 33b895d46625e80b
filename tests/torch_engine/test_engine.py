"""The engine on an event loop: start, submit, stream, abort, cleanup."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random

import pytest
import pytest_asyncio

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, StepEngine, StepOutputs
from enginewire.server.failures import (
    Draining,
    EngineDead,
    InvalidRequest,
    NotStarted,
    Unsupported,
)
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.options import TorchEngineOptions
from tests.patience import PATIENCE_SECONDS
from tests.torch_engine.scheduling.replica import Replica
from tests.torch_engine.tiny import greedy

PROMPT = [5, 9, 33, 7, 100]


class Recorder:
    """A step listener that keeps the steps and wakes whoever waits."""

    def __init__(self) -> None:
        self.steps: list[StepOutputs] = []
        self._changed = asyncio.Event()

    def __call__(self, outputs: StepOutputs) -> None:
        self.steps.append(outputs)
        self._changed.set()

    def tokens(self, context: GenerateContext) -> list[int]:
        found: list[int] = []
        for step in self.steps:
            found += [t for c, t in zip(step.contexts, step.token_ids, strict=True) if c is context]
            found += [t for c, out in step.outputs if c is context for t in out.token_ids]
        return found

    def terminals(self, context: GenerateContext) -> list[pb.LLMEngineOutput]:
        return [out for s in self.steps for c, out in s.outputs if c is context and out.finish_reason]

    def failures(self) -> list[object]:
        return [failure for step in self.steps for failure in step.failures]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def options(model_folder) -> TorchEngineOptions:
    return TorchEngineOptions(
        model=str(model_folder("llama")), device="cpu", dtype="float32", max_num_seqs=4, num_threads=1
    )


@pytest_asyncio.fixture
async def engine(options) -> AsyncIterator[TorchEngine]:
    made = TorchEngine(options)
    await made.start(1)
    yield made
    await made.cleanup()


async def collect(engine: TorchEngine, request: pb.PreprocessedRequest) -> list[pb.LLMEngineOutput]:
    return [out async for out in engine.generate(request, GenerateContext("r"))]


def assert_idle(engine: TorchEngine) -> None:
    load = engine.load()
    assert (load.running, load.waiting, load.waiting_tokens, load.kv_blocks_used) == (0, 0, 0, 0)


async def test_start_reports_progress_and_a_true_configuration(options):
    phases: list[str] = []
    engine = TorchEngine(options, progress=lambda phase, done: phases.append(phase))
    config = await engine.start(1)
    await engine.cleanup()
    assert isinstance(engine, StepEngine)
    assert list(dict.fromkeys(phases)) == ["import", "load", "warm-up"]
    assert (config.context_length, config.vocab_size, list(config.eos_token_ids)) == (256, 199, [1])
    assert config.total_kv_blocks == 4 * 256 // 16
    assert config.capabilities.seed
    assert config.capabilities.prefix_cache
    assert config.capabilities.kv_events
    assert not config.capabilities.batch_invariant


async def test_independence_of_the_batch_is_advertised_when_it_is_on(options):
    engine = TorchEngine(replace(options, batch_invariant=True))
    config = await engine.start(1)
    await engine.cleanup()
    assert config.capabilities.batch_invariant


async def test_a_listener_gets_one_row_per_token_and_one_terminal(engine, expected):
    recorder = Recorder()
    engine.set_step_listener(recorder)
    contexts = [GenerateContext(f"r{i}") for i in range(6)]
    for i, context in enumerate(contexts):
        engine.submit(greedy([*PROMPT, i], 10 + i), context)
    assert engine.load().waiting == 6
    await recorder.until(lambda: all(recorder.terminals(context) for context in contexts))
    for i, context in enumerate(contexts):
        assert recorder.tokens(context) == expected("llama", [*PROMPT, i], 10 + i)
        assert [out.finish_reason for out in recorder.terminals(context)] == [pb.FINISH_REASON_LENGTH]
    assert_idle(engine)


async def test_generate_streams_the_same_tokens(engine, expected):
    outputs = await collect(engine, greedy(PROMPT, 9))
    assert [t for out in outputs for t in out.token_ids] == expected("llama", PROMPT, 9)
    assert [out.first_output_position for out in outputs] == list(range(9))
    usage = outputs[-1].completion_usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 9, 14)


async def test_generate_and_a_listener_do_not_disturb_each_other(engine):
    recorder = Recorder()
    engine.set_step_listener(recorder)
    submitted = GenerateContext("submitted")
    engine.submit(greedy(PROMPT, 30), submitted)
    streamed = await collect(engine, greedy(PROMPT, 20))
    await recorder.until(lambda: bool(recorder.terminals(submitted)))
    tokens = recorder.tokens(submitted)
    assert len(tokens) == 30
    assert tokens[:20] == [t for out in streamed for t in out.token_ids]


async def test_an_aborted_request_ends_as_cancelled_and_frees_everything(engine):
    recorder = Recorder()
    engine.set_step_listener(recorder)
    context = GenerateContext("r")
    request = greedy(PROMPT, 240, n=3)
    engine.submit(request, context)
    await recorder.until(lambda: len(recorder.tokens(context)) > 5)
    await engine.abort(context)
    await engine.abort(context)
    await recorder.until(lambda: len(recorder.terminals(context)) == 3)
    terminals = recorder.terminals(context)
    assert {out.finish_reason for out in terminals} == {pb.FINISH_REASON_CANCELLED}
    assert sorted(out.index for out in terminals) == [0, 1, 2]
    assert terminals[-1].completion_usage.completion_tokens == len(recorder.tokens(context))
    assert_idle(engine)


async def test_a_cancelled_context_ends_its_stream(engine):
    context = GenerateContext("r")
    reasons: list[int] = []
    async for output in engine.generate(greedy(PROMPT, 240), context):
        reasons.append(output.finish_reason)
        context.cancel("test")
    assert reasons[-1] == pb.FINISH_REASON_CANCELLED
    assert len(reasons) < 240


async def test_closing_a_stream_early_frees_the_request(engine):
    recorder, context = Recorder(), GenerateContext("r")
    engine.set_step_listener(recorder)
    stream = engine.generate(greedy(PROMPT, 240), context)
    await anext(stream)
    await stream.aclose()
    await recorder.until(lambda: bool(recorder.terminals(context)))
    assert_idle(engine)


async def test_a_rejected_request_leaves_nothing_behind(engine):
    request = greedy(PROMPT, 1)
    request.sampling_options.length_penalty = 2.0
    with pytest.raises(InvalidRequest, match="length_penalty"):
        await collect(engine, request)
    assert_idle(engine)


async def test_cleanup_cancels_what_is_live_and_delivers_it_first(options):
    engine, recorder = TorchEngine(options), Recorder()
    engine.set_step_listener(recorder)
    await engine.start(1)
    contexts = [GenerateContext(f"r{i}") for i in range(6)]
    for context in contexts:
        engine.submit(greedy(PROMPT, 240), context)
    await engine.cleanup()
    ends = [recorder.terminals(context) for context in contexts]
    assert all(len(end) == 1 and end[0].finish_reason == pb.FINISH_REASON_CANCELLED for end in ends)
    assert_idle(engine)
    with pytest.raises(EngineDead):
        engine.submit(greedy(PROMPT, 1), GenerateContext("late"))
    await engine.cleanup()


async def test_drain_hands_waiting_requests_back_and_lets_running_ones_finish(engine):
    recorder = Recorder()
    engine.set_step_listener(recorder)
    contexts = [GenerateContext(f"r{i}") for i in range(7)]
    for context in contexts:
        engine.submit(greedy(PROMPT, 100), context)
    await recorder.until(lambda: bool(recorder.steps))
    await engine.drain()
    await recorder.until(lambda: all(recorder.terminals(context) for context in contexts[:4]))
    assert [(c, type(error)) for c, error in recorder.failures()] == [(c, Draining) for c in contexts[4:]]
    assert [len(recorder.tokens(context)) for context in contexts] == [100] * 4 + [0] * 3
    assert_idle(engine)


async def test_requests_before_start_are_refused(options):
    engine = TorchEngine(options)
    with pytest.raises(NotStarted):
        engine.submit(greedy(PROMPT, 1), GenerateContext("early"))
    await engine.cleanup()
    with pytest.raises(EngineDead):
        await engine.start(1)


async def test_cleanup_after_a_failed_start_is_safe(tmp_path):
    engine = TorchEngine(TorchEngineOptions(model=str(tmp_path / "nothing")))
    with pytest.raises(ModelLoadError, match="no such model folder"):
        await engine.start(1)
    await engine.cleanup()
    await engine.cleanup()


async def test_cleanup_while_loading_ends_the_start(options):
    async def clean_up() -> None:
        await engine.cleanup()

    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Future[None]] = []

    def progress(phase: str, done: float) -> None:
        if phase == "load" and not stopping:
            stopping.append(asyncio.run_coroutine_threadsafe(clean_up(), loop))
            while not engine._is_closed or not engine._thread._stopping:
                pass

    engine = TorchEngine(options, progress)
    with pytest.raises(EngineDead, match="cleaned up"):
        await engine.start(1)
    await asyncio.wrap_future(stopping[0])


async def test_a_dead_step_thread_fails_live_requests_and_refuses_new_ones(engine, caplog):
    recorder = Recorder()
    engine.set_step_listener(recorder)
    context, behind = GenerateContext("r"), GenerateContext("behind")
    engine.submit(greedy(PROMPT, 240), context)
    await recorder.until(lambda: len(recorder.tokens(context)) > 3)
    is_submitted = threading.Event()

    def bug(core: object) -> None:
        is_submitted.wait()
        raise ZeroDivisionError

    engine._thread.post(bug)
    engine.submit(greedy(PROMPT, 1), behind)
    is_submitted.set()
    await recorder.until(lambda: bool(recorder.failures()))
    assert {c: type(e) for c, e in recorder.failures()} == {context: EngineDead, behind: EngineDead}
    assert engine.load().tokens_generated > 3, "what has been counted stays"
    assert engine.stalled_for() == math.inf
    assert_idle(engine)
    with pytest.raises(EngineDead):
        engine.submit(greedy(PROMPT, 1), GenerateContext("late"))
    assert "the step thread died" in caplog.text


async def test_a_step_over_its_allowance_is_reported_as_stalled(engine, monkeypatch):
    assert engine.stalled_for() == 0.0
    thread = engine._thread
    thread._step_started = 0.0
    monkeypatch.setattr("enginewire.torch_engine.step_thread.STALL_FLOOR", -1e9)
    assert engine.stalled_for() > 1e8


async def test_a_storm_of_requests_and_aborts_ends_every_request_once(options):
    engine, recorder, random = TorchEngine(options), Recorder(), Random(5)
    engine.set_step_listener(recorder)
    await engine.start(1)
    contexts = [GenerateContext(f"r{i}") for i in range(150)]
    for context in contexts:
        engine.submit(greedy(PROMPT * random.randint(1, 6), random.randint(1, 20)), context)
        if random.random() < 0.4:
            await engine.abort(random.choice(contexts))
        await asyncio.sleep(0)
    await recorder.until(lambda: engine.load().requests_finished == len(contexts))
    await asyncio.sleep(0)
    assert [len(recorder.terminals(context)) for context in contexts] == [1] * len(contexts)
    for context in contexts:
        usage = recorder.terminals(context)[0].completion_usage
        assert usage.completion_tokens == len(recorder.tokens(context))
    assert_idle(engine)
    await engine.cleanup()


async def follow(engine: TorchEngine, replica: Replica) -> None:
    async for message in engine.subscribe_kv_events(0, replica.sequence):
        replica.read(message.events)


async def test_a_subscriber_holds_as_many_blocks_as_an_idle_engine_caches(engine):
    early, late = Replica(16), Replica(16)
    following = [asyncio.create_task(follow(engine, early))]
    for size in (3, 9, 40, 9):
        await collect(engine, greedy(PROMPT * size, 30))
    following.append(asyncio.create_task(follow(engine, late)))
    await asyncio.sleep(0)
    assert len(early.tokens) == len(late.tokens) == engine.load().kv_blocks_cached > 10
    assert early.tokens == late.tokens
    num_cached = len(early.tokens)
    assert await engine.reset_prefix_cache() == num_cached
    assert engine.load().kv_blocks_cached == 0
    await asyncio.sleep(0)
    assert early.tokens == late.tokens == {}
    await engine.cleanup()
    await asyncio.gather(*following)


async def test_blocks_in_use_survive_a_reset(engine, expected):
    recorder, context = Recorder(), GenerateContext("r")
    engine.set_step_listener(recorder)
    engine.submit(greedy(PROMPT * 8, 60), context)
    await recorder.until(lambda: len(recorder.tokens(context)) > 3)
    assert await engine.reset_prefix_cache() == 0
    await recorder.until(lambda: bool(recorder.terminals(context)))
    assert recorder.tokens(context) == expected("llama", PROMPT * 8, 60)
    assert engine.load().kv_blocks_cached == 6


async def test_kv_sources_and_resets_follow_the_switch(engine, options):
    assert await engine.kv_event_sources() == [pb.KvEventSource(dp_rank=0)]
    with pytest.raises(InvalidRequest, match="dp_rank"):
        await anext(engine.subscribe_kv_events(1, None))
    without = TorchEngine(replace(options, enable_prefix_caching=False))
    config = await without.start(1)
    assert not config.capabilities.prefix_cache
    assert not config.capabilities.kv_events
    assert await without.kv_event_sources() == []
    for _ in range(2):
        outputs = await collect(without, greedy(PROMPT * 8, 2))
        assert outputs[-1].completion_usage.prompt_tokens_details.cached_tokens == 0
    assert without.load().kv_blocks_cached == 0
    with pytest.raises(Unsupported):
        await without.reset_prefix_cache()
    with pytest.raises(Unsupported):
        await anext(without.subscribe_kv_events(0, None))
    await without.cleanup()


async def test_a_reset_of_an_engine_that_ends_is_refused_not_left_open(engine, caplog):
    def bug(core: object) -> None:
        raise ZeroDivisionError

    engine._thread.post(bug)
    for _ in range(2):  # the first finds the thread alive
        with pytest.raises(EngineDead):
            await asyncio.wait_for(engine.reset_prefix_cache(), PATIENCE_SECONDS)
    await engine.cleanup()
    with pytest.raises(EngineDead):
        await engine.reset_prefix_cache()
