"""An engine that streams per request, through the server: its answers, its bugs, its ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from enginewire import v1 as pb
from enginewire.server.engines import iterator_driver
from enginewire.server.engines.interface import (
    GenerateContext,
    LLMEngine,
    MetricsBindings,
    MetricsContext,
    StepEngine,
    Tokenizer,
)
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.failures import InvalidRequest, KvExhausted
from tests.server.serving import ask, in_one_frame, seconds, submit, until_true

LENGTH = pb.FINISH_REASON_LENGTH
Script = Callable[[pb.PreprocessedRequest, GenerateContext], AsyncIterator[pb.LLMEngineOutput]]


class ScriptedEngine:
    """An LLMEngine whose `generate` is given; counts the iterators that are open."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.open = 0
        self.is_clean = False

    async def start(self, worker_id: int) -> pb.EngineConfig:
        return pb.EngineConfig(
            model="scripted",
            vocab_size=256,
            context_length=1024,
            max_num_seqs=16,
            role=pb.ENGINE_ROLE_AGGREGATED,
            capabilities=pb.Capabilities(multiple_choices=True, resume=True),
        )

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[pb.LLMEngineOutput]:
        self.open += 1
        try:
            async for output in self._script(request, context):
                yield output
        finally:
            self.open -= 1

    async def abort(self, context: GenerateContext) -> None:
        pass

    async def drain(self) -> None:
        pass

    async def cleanup(self) -> None:
        self.is_clean = True

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        return []

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        return MetricsBindings()

    def load(self) -> pb.Load:
        return pb.Load(running=self.open)

    def tokenizer(self) -> Tokenizer | None:
        return None


def token(position: int, finish: int = 0, index: int = 0) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(
        token_ids=[7], first_output_position=position, index=index, finish_reason=finish
    )


async def counting(
    request: pb.PreprocessedRequest, context: GenerateContext
) -> AsyncIterator[pb.LLMEngineOutput]:
    """As many tokens as were asked for; heeds a cancellation."""
    last = request.stop_conditions.max_tokens - 1
    for position in range(last + 1):
        await asyncio.sleep(0.005)
        if context.is_cancelled:
            yield pb.LLMEngineOutput(first_output_position=position, finish_reason=pb.FINISH_REASON_CANCELLED)
            return
        yield token(position, LENGTH if position == last else 0)


async def deaf(
    request: pb.PreprocessedRequest, context: GenerateContext
) -> AsyncIterator[pb.LLMEngineOutput]:
    """A token for each choice, then nothing, whatever happens."""
    for index in range(max(1, request.sampling_options.n)):
        yield token(0, index=index)
    await asyncio.Event().wait()


@pytest.fixture
def serve(engine_server):
    """`await serve(script)` is a server around that engine, and the engine."""

    async def start(script: Script, **options: object):
        engine = ScriptedEngine(script)
        return await engine_server(IteratorDriver(engine), **options), engine

    return start


def test_the_driver_is_a_step_engine_and_a_scripted_engine_is_none():
    engine = ScriptedEngine(counting)
    assert isinstance(engine, LLMEngine)
    assert not isinstance(engine, StepEngine)
    assert isinstance(IteratorDriver(engine), StepEngine)


async def test_answers_arrive_by_either_way(serve):
    serving, _ = await serve(counting)
    shared = asyncio.create_task(serving.multiplexed(submit(i, ask(f"m{i}", max_tokens=5)) for i in range(8)))
    single = await asyncio.gather(*(serving.generate(ask(f"s{i}", max_tokens=5)) for i in range(8)))
    for answer in (*single, *(await shared).values()):
        assert answer.tokens() == [7] * 5
        assert answer.finishes() == {0: LENGTH}


async def test_everything_of_one_turn_of_the_loop_is_one_step(serve):
    serving, _ = await serve(counting)
    frame = in_one_frame(submit(i, ask(f"r{i}", max_tokens=10)) for i in range(16))
    call = serving.engine.GenerateMultiplexed(iter([frame]))
    frames = [frame async for frame in call]
    assert len(frames) < 16 * 10 / 2
    assert max(frame.step for frame in frames) < 16 * 10 / 2


@pytest.mark.parametrize("failure", [KvExhausted("no room"), InvalidRequest("no", field="token_ids")])
async def test_a_failure_the_engine_raises_is_reported_as_it_is(serve, failure):
    async def fails(request, context):
        yield token(0)
        raise failure

    serving, _ = await serve(fails)
    answer = await serving.generate(ask())
    assert answer.tokens() == [7]
    assert answer.failure.reason == failure.reason


async def test_a_bug_of_the_engine_ends_its_request_and_not_the_server(serve, caplog):
    async def fails(request, context):
        yield token(0)
        raise ZeroDivisionError("a secret")

    serving, engine = await serve(fails)
    answer = await serving.generate(ask())
    assert answer.failure.reason == pb.ERROR_REASON_INTERNAL
    assert answer.failure.metadata["error_id"] in caplog.text
    assert (await serving.generate(ask())).failure
    assert engine.open == 0


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [token(0)],
        [token(0, LENGTH, index=1)],
        [token(0, index=5)],
        [token(0, LENGTH), token(1, LENGTH)],
        [token(1)],
        [pb.LLMEngineOutput()],
        ["a word"],
    ],
)
async def test_an_answer_that_breaks_the_contract_is_a_failure_of_the_server(serve, outputs):
    async def breaks(request, context):
        for output in outputs:
            yield output

    serving, _ = await serve(breaks)
    answer = await serving.generate(ask(sampling_options=pb.SamplingOptions(n=2)))
    assert answer.failure.reason == pb.ERROR_REASON_INTERNAL


async def test_an_engine_that_heeds_an_abort_ends_the_request_itself(serve):
    serving, _ = await serve(counting)
    running = asyncio.create_task(serving.generate(ask(max_tokens=1000)))
    await serving.until(lambda load: load.running == 1)
    await serving.engine.Abort(pb.AbortRequest(all=True))
    assert (await running).finishes() == {0: pb.FINISH_REASON_CANCELLED}


async def test_an_engine_that_heeds_nothing_has_its_iterator_closed_and_its_terminals_made(
    serve, monkeypatch
):
    monkeypatch.setattr(iterator_driver, "CANCEL_GRACE_SECONDS", 0.05)
    serving, engine = await serve(deaf)
    options = pb.SamplingOptions(n=2)
    running = asyncio.create_task(serving.generate(ask(sampling_options=options)))
    await serving.until(lambda load: load.running == 1)
    await serving.engine.Abort(pb.AbortRequest(all=True))
    answer = await running
    assert answer.finishes() == dict.fromkeys(range(2), pb.FINISH_REASON_CANCELLED)
    assert answer.usage() == (5, 2)
    assert engine.open == 0


async def test_a_cancelled_call_closes_the_iterator(serve, monkeypatch):
    monkeypatch.setattr(iterator_driver, "CANCEL_GRACE_SECONDS", 0.05)
    serving, engine = await serve(deaf)
    call = serving.engine.Generate(ask())
    await call.read()
    call.cancel()
    await until_true(lambda: engine.open == 0)


async def test_a_deadline_closes_the_iterator(serve):
    serving, engine = await serve(deaf)
    answers = await serving.multiplexed([submit(1, ask(), timeout=seconds(0.1))])
    assert answers[1].tokens() == [7]
    assert answers[1].failure.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
    assert engine.open == 0


async def test_choices_that_were_finished_before_are_not_waited_for(serve):
    async def resumes(request, context):
        yield token(1, LENGTH, index=1)

    choices = [
        pb.ResumedChoice(index=0, generated_token_ids=[7], finished=True),
        pb.ResumedChoice(index=1, generated_token_ids=[7]),
    ]
    serving, _ = await serve(resumes)
    request = ask(sampling_options=pb.SamplingOptions(n=2), resume=pb.Resume(choices=choices))
    assert (await serving.generate(request)).failure is None


async def test_choices_that_have_their_last_token_end_without_the_engine(serve):
    asked = []

    async def resumes(request, context):
        asked.append(request)
        yield token(0, index=1)
        yield token(1, LENGTH, index=1)

    serving, _ = await serve(resumes)
    stop = pb.StopConditions(max_tokens=2, stop_token_ids=[9])
    for n, due in ((2, {0: pb.FINISH_REASON_STOP, 1: LENGTH}), (1, {0: pb.FINISH_REASON_STOP})):
        request = ask(sampling_options=pb.SamplingOptions(n=n))
        request.request.stop_conditions.CopyFrom(stop)
        request.request.resume.choices.add(index=0, generated_token_ids=[7, 9])
        answer = await serving.generate(request)
        assert (answer.failure, answer.finishes()) == (None, due)
        assert [output.token_ids for output in answer.outputs if not output.index] == [[]]
    assert answer.usage() == (5, 2)
    assert [[choice.finished for choice in each.resume.choices] for each in asked] == [[True]]


async def test_cleanup_ends_what_is_open_before_the_engine_is_released(serve, monkeypatch):
    monkeypatch.setattr(iterator_driver, "CANCEL_GRACE_SECONDS", 0.05)
    serving, engine = await serve(deaf)
    running = asyncio.create_task(serving.generate(ask()))
    await serving.until(lambda load: load.running == 1)
    await serving.engine.Cleanup(pb.CleanupRequest(abort_in_flight=True))
    assert (await running).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert (engine.open, engine.is_clean) == (0, True)


async def test_a_cleanup_of_its_own_gives_open_requests_their_terminals():
    engine = ScriptedEngine(deaf)
    driver, seen = IteratorDriver(engine), []
    driver.set_step_listener(lambda outputs: seen.extend(output for _, output in outputs.outputs))
    driver.submit(ask().request, GenerateContext("r1"))
    await until_true(lambda: engine.open == 1 and bool(seen))
    await driver.cleanup()
    await asyncio.sleep(0)
    assert [output.finish_reason for output in seen] == [0, pb.FINISH_REASON_CANCELLED]
