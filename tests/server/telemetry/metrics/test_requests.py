"""What requests did, added up: against counting choice by choice, and through every kind of end."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from enginewire import v1 as pb
from enginewire.metrics.histogram import BETWEEN_TOKENS_SECONDS, Histogram
from enginewire.server.admission.live import Discard
from enginewire.server.admission.queue.limits import QueueLimits
from enginewire.server.admission.table import RequestTable
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import Cancelled, EngineDead, EngineError, StepFailed
from enginewire.server.telemetry.metrics.requests import RequestMetrics
from tests.server.admission.test_table import CONFIG, Log, ManualEngine
from tests.server.serving import ask

STEP_SECONDS = 0.5
ENDS = [pb.FINISH_REASON_EOS, pb.FINISH_REASON_CANCELLED]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(num_prompt: int = 5, **sampling: object) -> pb.PreprocessedRequest:
    options = pb.SamplingOptions(**sampling)
    return pb.PreprocessedRequest(token_ids=[1] * num_prompt, sampling_options=options)


@dataclass
class Step:
    """Rows and events of one step, as choices of numbered requests."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)


choices = st.tuples(st.integers(0, 3), st.integers(0, 2))
steps = st.builds(
    Step,
    rows=st.one_of(st.just([(0, 0), (1, 0), (2, 0)]), st.lists(choices, max_size=6)),
    events=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 4)), max_size=2),
)


def one_by_one(all_steps: list[Step]) -> tuple[Histogram, int]:
    """Gaps between tokens, and requests with a first token, the slow way."""
    gaps, last, begun = Histogram(BETWEEN_TOKENS_SECONDS), {}, set()
    for number, step in enumerate(all_steps):
        runs = list(Counter(step.rows).items())
        runs += [((request, index), count) for request, index, count in step.events]
        for choice, count in runs:
            if choice in last:
                gaps.observe((number - last[choice]) * STEP_SECONDS / count, count)
            begun.add(choice[0])
            last[choice] = number
    return gaps, len(begun)


@given(st.lists(steps, max_size=12))
def test_gaps_between_tokens_are_those_of_looking_at_every_choice(all_steps: list[Step]) -> None:
    clock = Clock()
    metrics = RequestMetrics(clock)
    contexts = [GenerateContext(f"r{number}") for number in range(4)]
    for context in contexts:
        metrics.accepted(context, request())
    for step in all_steps:
        events = [
            (contexts[number], pb.LLMEngineOutput(index=index, token_ids=[7] * count))
            for number, index, count in step.events
        ]
        outputs = StepOutputs(1, outputs=events)
        for number, index in step.rows:
            outputs.contexts.append(contexts[number])
            outputs.indexes.append(index)
            outputs.token_ids.append(7)
        metrics.step(outputs)
        clock.now += STEP_SECONDS
    gaps, num_begun = one_by_one(all_steps)
    totals = metrics.totals
    assert totals.between_tokens.counts == gaps.counts
    assert totals.between_tokens.sum == pytest.approx(gaps.sum)
    assert totals.first_token.count == num_begun
    assert totals.prompt_tokens == 5 * num_begun
    num_tokens = sum(len(step.rows) + sum(event[2] for event in step.events) for step in all_steps)
    assert totals.generated_tokens == num_tokens


def test_latencies_of_a_request_are_cut_where_it_began_to_run_and_at_its_first_token() -> None:
    clock = Clock()
    table, engine = counting_table(clock)
    context = table.submit(ask("a", max_tokens=3), Log(), None)
    clock.now = context.running_since = 102.0
    clock.now = 105.0
    engine.deliver(contexts=[context], indexes=[0], positions=[0], token_ids=[7])
    clock.now = 111.0
    usage = pb.CompletionUsage(prompt_tokens=5, completion_tokens=3)
    usage.prompt_tokens_details.cached_tokens = 4
    last = pb.LLMEngineOutput(token_ids=[8, 9], finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage)
    engine.deliver(outputs=[(context, last)])
    totals = engine.metrics.totals
    assert totals.queue.sum == 2.0
    assert totals.first_token.sum == 5.0
    assert totals.prefill.sum == 3.0
    assert totals.decode.sum == 6.0
    assert totals.inference.sum == 9.0
    assert totals.whole.sum == 11.0
    assert totals.per_output_token.sum == 3.0
    assert (totals.between_tokens.count, totals.between_tokens.sum) == (2, 6.0)
    assert (totals.prompt_lengths.sum, totals.answer_lengths.sum, totals.max_tokens.sum) == (5, 3, 3)
    assert (totals.prompt_tokens, totals.cached_prompt_tokens, totals.generated_tokens) == (5, 4, 3)
    assert (totals.choices.count, totals.choices.sum) == (1, 1)
    assert totals.finished["length"] == 1


def test_requests_of_one_token_and_of_cached_prompts_add_up() -> None:
    table, engine = counting_table(Clock())
    for number in range(2):
        context = table.submit(ask(f"r{number}"), Log(), None)
        context.running_since = 99.0  # a thread was faster than the loop
        usage = pb.CompletionUsage(prompt_tokens=5, completion_tokens=1)
        usage.prompt_tokens_details.cached_tokens = 4
        last = pb.LLMEngineOutput(token_ids=[8], finish_reason=pb.FINISH_REASON_EOS, completion_usage=usage)
        engine.deliver(outputs=[(context, last)])
    totals = engine.metrics.totals
    assert totals.cached_prompt_tokens == 8
    assert (totals.queue.count, totals.queue.sum) == (2, 0.0)
    assert (totals.whole.count, totals.decode.count, totals.per_output_token.count) == (2, 2, 0)


def test_what_an_engine_cancels_by_an_error_is_aborted_and_what_it_fails_is_not() -> None:
    table, engine = counting_table(Clock())
    for number, error in enumerate((Cancelled("why"), StepFailed("no"))):
        engine.fail(table.submit(ask(f"r{number}"), Log(), None), error)
    totals = engine.metrics.totals
    assert +totals.finished == {"abort": 1, "error": 1}
    assert totals.failed == {pb.ERROR_REASON_CANCELLED: 1, StepFailed.reason: 1}


async def test_who_is_refused_before_a_submit_is_counted_once() -> None:
    table, engine = counting_table(Clock())
    with pytest.raises(EngineError):
        await table.prepare(ask("a", model="another"))
    embed = pb.EmbedRequest(request_id="e", request=pb.PreprocessedEmbeddingRequest())
    with pytest.raises(EngineError):
        await table.embed(embed, None)
    assert engine.metrics.totals.refused == {
        pb.ERROR_REASON_MODEL_NOT_FOUND: 1,
        pb.ERROR_REASON_UNSUPPORTED: 1,
    }


def test_an_engine_that_never_says_when_it_begins_has_no_queue_times() -> None:
    table, engine = counting_table(Clock())
    engine.finish(table.submit(ask("a"), Log(), None))
    totals = engine.metrics.totals
    assert (totals.whole.count, totals.queue.count, totals.inference.count) == (1, 0, 0)


def test_tokens_that_an_earlier_engine_delivered_are_not_counted_again() -> None:
    config = pb.EngineConfig()
    config.CopyFrom(CONFIG)
    config.capabilities.resume = True
    table, engine = counting_table(Clock(), config=config)
    resumed = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[1, 2, 3])])
    context = table.submit(ask("a", resume=resumed), Log(), None)
    usage = pb.CompletionUsage(prompt_tokens=5, completion_tokens=5)
    last = pb.LLMEngineOutput(token_ids=[8, 9], finish_reason=pb.FINISH_REASON_EOS, completion_usage=usage)
    engine.deliver(outputs=[(context, last)])
    assert engine.metrics.totals.answer_lengths.sum == 2


def test_a_request_that_is_not_let_in_is_counted_by_its_reason() -> None:
    table, engine = counting_table(Clock(), max_requests=1)
    for number in range(5):
        with_room = number < 4
        if with_room:
            table.submit(ask(f"r{number}"), Log(), None)
        else:
            with pytest.raises(EngineError):
                table.submit(ask(f"r{number}"), Log(), None)
    with pytest.raises(EngineError):
        table.submit(ask("r0"), Log(), None)
    assert engine.metrics.totals.refused == {pb.ERROR_REASON_QUEUE_FULL: 1, pb.ERROR_REASON_DUPLICATE_ID: 1}
    assert engine.metrics.num_live == 4


async def test_a_reader_that_is_given_up_is_a_failure_whose_choices_end_as_aborted() -> None:
    table, engine = counting_table(Clock())
    slow = Log()
    slow.slow = True
    context = table.submit(ask("a"), slow, None)
    await table.abort_slow()
    cancelled = pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_CANCELLED)
    engine.deliver(outputs=[(context, cancelled)])
    totals = engine.metrics.totals
    assert totals.failed == {pb.ERROR_REASON_SLOW_CONSUMER: 1}
    assert +totals.finished == {"abort": 1}
    assert totals.whole.count == 0


def counting_table(
    clock: Clock, max_requests: int = 100, config: pb.EngineConfig = CONFIG
) -> tuple[RequestTable, MeteredEngine]:
    metrics = RequestMetrics(clock)
    table = RequestTable(QueueLimits(max_requests, 10_000), observer=metrics)
    engine = MeteredEngine(table, metrics)
    table.open(engine, config)
    return table, engine


class MeteredEngine(ManualEngine):
    """One whose table counts."""

    def __init__(self, table: RequestTable, metrics: RequestMetrics) -> None:
        super().__init__(table)
        self.metrics = metrics


class AnyLife(RuleBasedStateMachine):
    """Requests come, get tokens, are aborted, end and fail, even behind the engine's back."""

    contexts = Bundle("contexts")

    @initialize()
    def make(self) -> None:
        self.clock = Clock()
        self.table, self.engine = counting_table(self.clock)
        self.num_choices = 0
        self.num_failed = 0
        self.number = 0
        self.runner = asyncio.Runner()
        self.live: list[GenerateContext] = []

    def teardown(self) -> None:
        self.runner.close()
        for context in list(self.live):
            self.fail(context)
        assert self.engine.metrics.num_live == 0
        totals = self.engine.metrics.totals
        assert sum(totals.finished.values()) == self.num_choices
        assert sum(totals.failed.values()) == self.num_failed

    @rule(target=contexts, n=st.integers(1, 3))
    def submit(self, n: int) -> GenerateContext:
        self.number += 1
        self.num_choices += n
        options = pb.SamplingOptions(n=n)
        self.live.append(self.table.submit(ask(f"r{self.number}", sampling_options=options), Discard(), None))
        return self.live[-1]

    @rule(context=contexts, index=st.integers(0, 2))
    def token(self, context: GenerateContext, index: int) -> None:
        self.clock.now += 1
        index = min(index, context.sink.open_choices - 1) if context in self.live else 0
        self.engine.deliver(contexts=[context], indexes=[index], positions=[0], token_ids=[7])

    @rule(context=contexts)
    def abort(self, context: GenerateContext) -> None:
        self.runner.run(self.table.abort(context, "why"))

    @rule(
        context=consumes(contexts), reason=st.sampled_from([pb.FINISH_REASON_EOS, pb.FINISH_REASON_CANCELLED])
    )
    def finish(self, context: GenerateContext, reason: int) -> None:
        for index in range(context.sink.open_choices):
            output = pb.LLMEngineOutput(index=index, finish_reason=reason)
            self.engine.deliver(outputs=[(context, output)])
        if context in self.live:
            self.live.remove(context)

    @rule(context=consumes(contexts))
    def fail(self, context: GenerateContext) -> None:
        if context in self.live:
            self.live.remove(context)
            self.num_failed += 1
            self.engine.fail(context, StepFailed("no"))

    @rule()
    def fail_all(self) -> None:
        self.num_failed += len(self.live)
        self.live.clear()
        self.table.fail_all(lambda: EngineDead("stuck"))

    @invariant()
    def knows_what_is_live(self) -> None:
        assert self.engine.metrics.num_live == len(self.live) == self.table.live_count


AnyLife.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestAnyLife = AnyLife.TestCase


def test_a_first_token_that_was_noted_before_it_came_counts_from_then(monkeypatch):
    now = 100.0
    metrics = RequestMetrics(lambda: now)
    context = GenerateContext("r")
    metrics.accepted(context, pb.PreprocessedRequest(token_ids=[1]))
    monkeypatch.setattr("enginewire.server.engines.interface.time.monotonic", lambda: 102.0)
    context.notify_first_token()
    now = 107.0
    metrics.step(StepOutputs(1, [context], [0], [0], [5]))
    assert metrics.totals.first_token.sum == 2.0
