"""The table of live requests: who is let in, who is told what, and that it ends empty."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from enginewire import v1 as pb
from enginewire.server.admission import live as live_request, remembered_ids, table as table_module
from enginewire.server.admission.delivery import BufferLimits, RequestStream
from enginewire.server.admission.queue.limits import QueueLimits
from enginewire.server.admission.table import RequestTable
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.failures import (
    Cancelled,
    DuplicateRequest,
    EngineDead,
    EngineError,
    InvalidRequest,
    NotStarted,
    QueueFull,
    StepFailed,
)
from tests.server.serving import ask

LIMITS = QueueLimits(requests=2, tokens=40)
MAX_NUM_SEQS = 3
CONFIG = pb.EngineConfig(
    model="fake",
    context_length=128,
    max_num_seqs=MAX_NUM_SEQS,
    vocab_size=256,
    role=pb.ENGINE_ROLE_AGGREGATED,
    capabilities=pb.Capabilities(multiple_choices=True),
)

CONFIG_WITH_BEST_OF = pb.EngineConfig()
CONFIG_WITH_BEST_OF.CopyFrom(CONFIG)
CONFIG_WITH_BEST_OF.capabilities.best_of = True


class ManualEngine(MockerEngine):
    """Accepts requests and does nothing until it is told to."""

    def __init__(self, table: RequestTable) -> None:
        super().__init__()
        self.waiting_tokens = 0
        self.aborted: list[GenerateContext] = []
        self.never_returns = ""
        self.refusal: EngineError | None = None
        self._table = table
        self._step = 0

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def abort(self, context: GenerateContext) -> None:
        self.aborted.append(context)
        if context.request_id == self.never_returns:
            await asyncio.Event().wait()

    def load(self) -> pb.Load:
        return pb.Load(waiting_tokens=self.waiting_tokens)

    def deliver(self, **outputs: object) -> None:
        self._step += 1
        self._table.deliver(StepOutputs(self._step, **outputs))

    def finish(self, context: GenerateContext, index: int = 0) -> None:
        self.deliver(outputs=[(context, pb.LLMEngineOutput(index=index, finish_reason=pb.FINISH_REASON_EOS))])

    def fail(self, context: GenerateContext, failure: EngineError | None = None) -> None:
        self.deliver(failures=[(context, failure or StepFailed("no"))])


class Log:
    """A sink that writes down what reached it."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.slow = False

    def token(self, index: int, position: int, token_id: int) -> None:
        self.events.append((index, position, token_id))

    def output(self, output: pb.LLMEngineOutput) -> None:
        self.events.append(output.index)

    def fail(self, failure: EngineError) -> None:
        self.events.append(type(failure).__name__)

    def finish(self) -> None:
        self.events.append("finished")

    def is_slow(self, now: float) -> bool:
        return self.slow


class Table:
    """A table that is open to a manual engine."""

    def __init__(self) -> None:
        self.requests = RequestTable(LIMITS)
        self.engine = ManualEngine(self.requests)
        self.requests.open(self.engine, CONFIG)

    def submit(self, request_id: str, sink: Log | None = None, **request: object) -> GenerateContext:
        return self.requests.submit(ask(request_id, **request), sink or Log(), None)

    async def is_idle(self) -> bool:
        waiting = asyncio.ensure_future(self.requests.wait_idle())
        await asyncio.sleep(0)
        return waiting.done() or not waiting.cancel()


@pytest.fixture
def table() -> Table:
    return Table()


def test_nothing_is_admitted_before_the_engine_has_started():
    with pytest.raises(NotStarted):
        RequestTable(LIMITS).submit(ask(), Log(), None)


def test_a_closed_table_refuses_with_its_reason(table):
    table.requests.close(lambda: EngineDead("gone"))
    with pytest.raises(EngineDead):
        table.submit("a")


def test_a_live_id_is_refused_and_its_owner_untouched(table):
    sink = Log()
    context = table.submit("a", sink)
    with pytest.raises(DuplicateRequest):
        table.submit("a")
    table.engine.finish(context)
    assert sink.events == [0, "finished"]


@pytest.mark.parametrize("end", [ManualEngine.finish, ManualEngine.fail])
async def test_an_id_may_be_used_again_after_its_request_ended(table, end):
    end(table.engine, table.submit("a"))
    assert await table.is_idle()
    table.submit("a")
    assert not await table.is_idle()


def test_a_request_ends_with_its_last_choice(table):
    sink = Log()
    context = table.submit("a", sink, sampling_options=pb.SamplingOptions(n=2))
    table.engine.finish(context, 1)
    assert table.requests.live_count == 1
    table.engine.finish(context, 0)
    assert table.requests.live_count == 0
    assert sink.events == [1, 0, "finished"]


def test_within_a_step_tokens_come_before_outputs(table):
    sink = Log()
    context = table.submit("a", sink)
    output = pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_EOS)
    table.engine.deliver(
        contexts=[context], indexes=[0], positions=[0], token_ids=[9], outputs=[(context, output)]
    )
    assert sink.events == [(0, 0, 9), 0, "finished"]


def test_the_queue_has_room_for_its_limit_beyond_what_runs(table):
    contexts = [table.submit(f"r{i}") for i in range(MAX_NUM_SEQS + LIMITS.requests)]
    with pytest.raises(QueueFull) as caught:
        table.submit("one-more")
    assert caught.value.metadata == {"queue_depth": "2", "limit": "2"}
    assert caught.value.retry_after
    table.engine.finish(contexts[0])
    table.submit("one-more")


def test_choices_take_places_and_requests_wait(table):
    several = pb.SamplingOptions(n=2)
    contexts = [table.submit(f"r{i}", sampling_options=several) for i in range(4)]  # 2 run, 2 wait
    with pytest.raises(QueueFull) as caught:
        table.submit("one-more")
    assert caught.value.metadata == {"queue_depth": "2", "limit": "2"}
    table.engine.finish(contexts[0], 0)
    table.engine.finish(contexts[0], 1)
    table.submit("one-more")


def test_candidates_that_are_not_returned_take_places_too(table):
    table.requests.open(table.engine, CONFIG_WITH_BEST_OF)
    table.submit("r0", sampling_options=pb.SamplingOptions(n=1, best_of=3))
    for i in range(LIMITS.requests):
        table.submit(f"waiting{i}")
    with pytest.raises(QueueFull):
        table.submit("one-more")


def test_prompt_tokens_in_the_queue_are_limited_once_all_slots_are_taken(table):
    table.engine.waiting_tokens = LIMITS.tokens
    for i in range(MAX_NUM_SEQS):
        table.submit(f"r{i}")
    table.engine.waiting_tokens = LIMITS.tokens - len(ask().request.token_ids)
    table.submit("fills-it")
    table.engine.waiting_tokens += 1
    with pytest.raises(QueueFull) as caught:
        table.submit("one-more")
    assert caught.value.metadata["limit"] == str(LIMITS.tokens)


async def test_a_request_the_engine_refuses_leaves_nothing_behind(table):
    table.engine.refusal = InvalidRequest("no")
    with pytest.raises(InvalidRequest):
        table.submit("a")
    assert await table.is_idle()
    table.engine.refusal = None
    table.submit("a")


async def test_an_abort_tells_the_engine_once_and_leaves_the_end_to_it(table):
    context = table.submit("a")
    assert await table.requests.abort_ids(["a"], "why") == [pb.ABORT_OUTCOME_ABORTED]
    assert await table.requests.abort_ids(["a"], "again") == [pb.ABORT_OUTCOME_ABORTED]
    assert table.engine.aborted == [context]
    assert context.cancel_reason == "why"
    assert not await table.is_idle()


async def test_what_has_ended_in_the_engine_meanwhile_ends_as_whoever_aborted_it_was_told(table):
    discarded, ends = [], []
    table.engine.discard_handoff = discarded.append
    sink = Log()
    sink.output = ends.append
    context = table.submit("a", sink)
    assert await table.requests.abort_ids(["a"], "why") == [pb.ABORT_OUTCOME_ABORTED]
    natural = pb.LLMEngineOutput(
        token_ids=[5],
        finish_reason=pb.FINISH_REASON_STOP,
        stop_match=pb.StopMatch(token_id=5),
        prefill_handoff=pb.PrefillHandoff(params=b"here"),
        completion_usage=pb.CompletionUsage(prompt_tokens=3),
    )
    table.engine.deliver(outputs=[(context, natural)])
    usage = pb.CompletionUsage(prompt_tokens=3)
    cancelled = pb.FINISH_REASON_CANCELLED
    assert ends == [pb.LLMEngineOutput(token_ids=[5], finish_reason=cancelled, completion_usage=usage)]
    assert discarded == ["a"]
    assert await table.is_idle()


async def test_a_failure_that_overtakes_an_abort_is_told(table):
    sink, ends = Log(), []
    sink.output = ends.append
    context = table.submit("a", sink)
    await table.requests.abort_ids(["a"], "why")
    failed = pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_ERROR, error_message="no")
    table.engine.deliver(outputs=[(context, failed)])
    assert [end.finish_reason for end in ends] == [pb.FINISH_REASON_ERROR]


async def test_an_abort_that_never_returns_holds_up_no_other_one(table, monkeypatch):
    monkeypatch.setattr(table_module, "ABORT_SECONDS", 0.01)
    contexts = [table.submit(name) for name in ("a", "b")]
    table.engine.never_returns = "a"
    assert await table.requests.abort_ids(["a", "b", "a"], "why") == [pb.ABORT_OUTCOME_ABORTED] * 3
    assert table.engine.aborted == contexts


async def test_an_abort_of_an_earlier_request_does_not_touch_its_successor(table):
    first = table.submit("a")
    table.engine.finish(first)
    second = table.submit("a")
    await table.requests.abort(first, "late")
    assert not second.is_cancelled
    assert table.engine.aborted == []


async def test_an_abort_after_the_end_says_finished(table):
    table.engine.finish(table.submit("a"))
    assert await table.requests.abort_ids(["a"], "late") == [pb.ABORT_OUTCOME_FINISHED]


async def test_ids_are_exact(table):
    context = table.submit("abc")
    assert await table.requests.abort_ids(["ab"], "prefix") == [pb.ABORT_OUTCOME_UNKNOWN]
    assert not context.is_cancelled


async def test_an_abort_that_overtakes_its_request_refuses_it_once(table):
    assert await table.requests.abort_ids(["a"], "early") == [pb.ABORT_OUTCOME_UNKNOWN]
    with pytest.raises(Cancelled):
        table.submit("a")
    assert await table.is_idle()
    table.submit("a")


async def test_an_early_abort_is_forgotten_after_a_while(table, monkeypatch):
    await table.requests.abort_ids(["a"], "early")
    later = time.monotonic() + remembered_ids.REMEMBER_ABORTS_SECONDS + 1
    monkeypatch.setattr(remembered_ids.time, "monotonic", lambda: later)
    table.submit("a")


async def test_aborts_of_unknown_ids_are_remembered_in_bounded_memory(table, monkeypatch):
    monkeypatch.setattr(remembered_ids, "REMEMBERED_IDS", 3)
    for i in range(5):
        await table.requests.abort_ids([f"r{i}"], "early")
    table.submit("r0")
    with pytest.raises(Cancelled):
        table.submit("r4")


def test_a_failed_request_gets_nothing_more_even_if_the_engine_goes_on(table):
    sink = Log()
    context = table.submit("a", sink)
    table.requests.fail_all(lambda: EngineDead("stuck"))
    table.engine.finish(context)
    assert sink.events == ["EngineDead"]


async def test_a_slow_reader_is_failed_and_its_request_aborted_while_others_go_on(table):
    slow, other = Log(), Log()
    slow.slow = True
    contexts = [table.submit("slow", slow), table.submit("other", other)]
    await table.requests.abort_slow()
    for context in contexts:
        table.engine.finish(context)
    assert slow.events == ["SlowConsumer"]
    assert other.events == [0, "finished"]
    assert table.engine.aborted == contexts[:1]


class LiveRequests(RuleBasedStateMachine):
    """Requests come, are aborted, finish and fail; the table always knows which are live."""

    contexts = Bundle("contexts")

    @initialize()
    def make(self) -> None:
        self.table = Table()
        self.live: dict[str, GenerateContext] = {}
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        self.runner.close()

    @rule(target=contexts, request_id=st.sampled_from("abcdefgh"))
    def submit(self, request_id: str) -> object:
        if request_id in self.live:
            with pytest.raises(DuplicateRequest):
                self.table.submit(request_id)
            return multiple()
        if len(self.live) >= MAX_NUM_SEQS + LIMITS.requests:
            with pytest.raises(QueueFull):
                self.table.submit(request_id)
            return multiple()
        self.live[request_id] = self.table.submit(request_id)
        return self.live[request_id]

    @rule(context=contexts)
    def abort(self, context: GenerateContext) -> None:
        is_live = self.live.get(context.request_id) is context
        self.runner.run(self.table.requests.abort(context, "why"))
        assert is_live == (context in self.table.engine.aborted)

    @rule(context=consumes(contexts), end=st.sampled_from([ManualEngine.finish, ManualEngine.fail]))
    def end(self, context: GenerateContext, end: object) -> None:
        end(self.table.engine, context)
        del self.live[context.request_id]

    @invariant()
    def knows_what_is_live(self) -> None:
        assert self.table.requests.live_count == len(self.live)
        assert self.runner.run(self.table.is_idle()) == (not self.live)


LiveRequests.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLiveRequests = LiveRequests.TestCase


async def test_a_request_stream_is_a_sink(table):
    stream = RequestStream(BufferLimits())
    table.engine.finish(table.requests.submit(ask(), stream, None))
    assert [output.finish_reason async for output in stream.read()] == [pb.FINISH_REASON_EOS]


@pytest.mark.parametrize(
    ("began", "times"), [(None, "4.500 s"), (101.0, "1.000 s in the queue, 3.500 s computed")]
)
def test_the_end_of_a_request_is_logged_with_counts_and_times_and_without_content(
    caplog, monkeypatch, began, times
):
    monkeypatch.setattr(live_request, "time", SimpleNamespace(monotonic=lambda: 104.5))
    table = Table()
    table.requests = RequestTable(LIMITS, log_requests=True)
    table.engine = ManualEngine(table.requests)
    table.requests.open(table.engine, CONFIG)
    with caplog.at_level("INFO"):
        context = table.submit("logged")
        context.sink.accepted_at, context.running_since = 100.0, began
        table.engine.finish(context)
    assert caplog.messages == [f"request logged ended: FINISH_REASON_EOS, 0 + 0 tokens, {times}"]
