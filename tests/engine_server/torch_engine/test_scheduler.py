"""The scheduler and its block pool keep their promises under any order of events."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine_server.interface import GenerateContext
from engine_server.torch_engine.kv_cache import BlockPool
from engine_server.torch_engine.params import SamplingParams, StopRules
from engine_server.torch_engine.scheduler import Scheduled, Scheduler
from engine_server.torch_engine.sequence import Request, Sequence

serials = count(1)


def make_request(
    num_prompt: int, max_tokens: int, n: int = 1, priority: int = 0, deadline: float | None = None
) -> Request:
    stop = StopRules(max_total_tokens=num_prompt + max_tokens)
    context = GenerateContext("r", deadline)
    urgency = (priority, 0.0, next(serials))
    request = Request(context, [1] * num_prompt, SamplingParams(seed=0), stop, urgency)
    request.sequences = [Sequence(request, index) for index in range(n)]
    return request


def compute(scheduler: Scheduler, granted: list[Scheduled]) -> None:
    """What a model run does to the sequences."""
    for grant in granted:
        samples = grant.samples
        grant.sequence.num_computed_tokens += grant.num_tokens
        if samples:
            grant.sequence.append(2)
            if grant.sequence.finish():
                scheduler.release(grant.sequence)


def run(scheduler: Scheduler) -> list[list[Scheduled]]:
    steps = []
    while scheduler.has_work:
        steps.append(scheduler.schedule())
        assert steps[-1], "a step with work must schedule something"
        compute(scheduler, steps[-1])
    return steps


def lengths(granted: list[Scheduled]) -> list[int]:
    return [grant.num_tokens for grant in granted]


def test_a_long_prompt_is_computed_in_chunks_beside_decodes():
    scheduler = Scheduler(BlockPool(64, 4), max_num_seqs=4, max_num_batched_tokens=8)
    scheduler.add(make_request(3, 5))
    scheduler.add(make_request(14, 2))
    assert [lengths(step) for step in run(scheduler)] == [[3, 5], [1, 7], [1, 2], [1, 1], [1]]


def test_a_decode_is_never_starved_by_a_more_urgent_prefill():
    scheduler = Scheduler(BlockPool(64, 4), max_num_seqs=2, max_num_batched_tokens=4)
    decode = make_request(2, 20)
    scheduler.add(decode)
    compute(scheduler, scheduler.schedule())
    scheduler.add(make_request(40, 1, priority=-1))
    for _ in range(8):
        granted = scheduler.schedule()
        assert decode.sequences[0] in [grant.sequence for grant in granted]
        assert sum(lengths(granted)) <= 4
        compute(scheduler, granted)


def test_lower_priority_values_run_first():
    scheduler = Scheduler(BlockPool(64, 4), max_num_seqs=1, max_num_batched_tokens=8)
    late, urgent = make_request(2, 1, priority=5), make_request(2, 1, priority=-5)
    scheduler.add(late)
    scheduler.add(urgent)
    assert scheduler.schedule()[0].sequence is urgent.sequences[0]


def test_the_least_urgent_sequence_is_preempted_and_comes_back():
    scheduler = Scheduler(BlockPool(6, 2), max_num_seqs=4, max_num_batched_tokens=16)
    first, second = make_request(4, 6), make_request(2, 4)
    scheduler.add(first)
    scheduler.add(second)
    steps = run(scheduler)
    assert scheduler.num_preemptions == 1
    assert first.num_output_tokens == 6
    assert second.num_output_tokens == 4
    assert max(map(sum, map(lengths, steps[1:]))) > 1, "the preempted tokens are computed again"


def test_a_request_whose_deadline_passed_is_reported_once_even_while_it_waits():
    scheduler = Scheduler(BlockPool(4, 4), max_num_seqs=1, max_num_batched_tokens=8)
    running, waiting = make_request(2, 9, deadline=9.0), make_request(2, 9, deadline=5.0)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.schedule()
    assert scheduler.expired(4.9) == []
    assert scheduler.expired(5.0) == [waiting]
    assert scheduler.expired(5.0) == []
    scheduler.release(running.sequences[0])
    assert scheduler.expired(99.0) == []


def test_a_block_cannot_be_freed_twice():
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps and releases in any order over a pool that is too small for everybody."""

    POOL, SEQS, BUDGET = 8, 3, 5

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.POOL, 4)
        self.scheduler = Scheduler(self.pool, self.SEQS, self.BUDGET)
        self.sequences: list[Sequence] = []

    @rule(
        prompt=st.integers(1, 20),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        priority=st.integers(-1, 1),
    )
    def add(self, prompt: int, max_tokens: int, n: int, priority: int) -> None:
        request = make_request(prompt, max_tokens, n, priority)
        self.sequences += request.sequences
        self.scheduler.add(request)

    @rule()
    def step(self) -> None:
        granted = self.scheduler.schedule()
        assert bool(granted) == self.scheduler.has_work
        assert sum(lengths(granted)) <= self.BUDGET
        assert len({id(grant.sequence) for grant in granted}) == len(granted)
        for grant in granted:
            reached = grant.sequence.num_computed_tokens + grant.num_tokens
            assert len(grant.sequence.block_table) >= self.pool.blocks_for(reached)
        compute(self.scheduler, granted)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        alive = [sequence for sequence in self.sequences if not sequence.is_finished]
        if alive:
            self.scheduler.release(data.draw(st.sampled_from(alive)))

    @invariant()
    def every_block_has_one_owner(self) -> None:
        held = [block for sequence in self.sequences for block in sequence.block_table]
        assert len(held) == len(set(held)) == self.pool.num_used
        assert self.pool.num_free + self.pool.num_used == self.POOL

    @invariant()
    def every_live_sequence_is_in_one_ordered_queue(self) -> None:
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        alive = [sequence for sequence in self.sequences if not sequence.is_finished]
        assert {id(s) for s in queued} == {id(s) for s in alive}
        assert len(queued) == len(alive)
        assert len(self.scheduler.running) <= self.SEQS
        for queue in (self.scheduler.running, self.scheduler.waiting):
            assert queue == sorted(queue, key=lambda sequence: sequence.urgency)

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work
        assert self.pool.num_used == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
