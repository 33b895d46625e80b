"""The scheduler and its block pool keep their promises under any order of events."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.prefix_cache import public_hash
from enginewire.torch_engine.scheduling.scheduler import Scheduler
from tests.long import examples, long
from tests.torch_engine.scheduling.replica import Replica
from tests.torch_engine.scheduling.scheduling import compute, lengths, make_request


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, releases, preempts and resets in any order over a pool that is too small for everybody.

    `contents` is what a model would have written: for each place in the cache everything that its key and
    value depend on, which is the whole text before it.
    """

    POOL, SIZE, SEQS, BUDGET = 8, 4, 3, 5
    LONGEST = 20
    WINDOW: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.POOL, self.SIZE)
        self.scheduler = Scheduler(self.pool, self.SEQS, self.BUDGET, window=self.WINDOW)
        self.sequences: list[Sequence] = []
        self.contents: dict[tuple[int, int], object] = {}
        self.replica = Replica(self.SIZE)

    @rule(
        prompt=st.runner().flatmap(lambda machine: st.integers(1, machine.LONGEST)),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, "", "", "", "b"]),
        first=st.sampled_from([1, 1, 3]),
    )
    def add(self, prompt: int, max_tokens: int, n: int, priority: int, salt: str | None, first: int) -> None:
        request = make_request(prompt, max_tokens, n, priority, salt=salt, first=first)
        self.sequences += request.sequences
        self.scheduler.add(request)

    @rule()
    def step(self) -> None:
        running = list(self.scheduler.running)
        granted = self.scheduler.schedule()
        assert bool(granted) == self.scheduler.has_work
        assert sum(lengths(granted)) <= self.BUDGET
        assert all(lengths(granted))
        assert len({id(grant.sequence) for grant in granted}) == len(granted)
        for grant in granted:
            reached = grant.sequence.num_computed_tokens + grant.num_tokens
            assert len(grant.sequence.block_table) >= self.pool.blocks_for(reached)
            if grant.sequence not in running:
                self.check_nobody_was_overtaken(grant.sequence)
        self.write(granted)
        compute(self.scheduler, granted)

    def check_nobody_was_overtaken(self, newcomer: Sequence) -> None:
        for sequence in self.scheduler.waiting:
            waits_for_sibling = any(other.block_table for other in sequence.request.sequences)
            assert waits_for_sibling or sequence.urgency > newcomer.urgency

    def write(self, granted: list[Scheduled]) -> None:
        for grant in granted:
            for block in grant.new_blocks:
                for offset in range(self.SIZE):
                    self.contents.pop((block, offset), None)
        for grant in granted:
            sequence = grant.sequence
            start = sequence.num_computed_tokens
            for position in range(start, start + grant.num_tokens):
                self.contents[self.place(sequence, position)] = text(sequence, position)

    def place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.block_table[position // self.SIZE], position % self.SIZE

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        alive = [sequence for sequence in self.sequences if not sequence.is_finished]
        if alive:
            self.scheduler.release(data.draw(st.sampled_from(alive)))

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        if self.scheduler.running:
            self.scheduler._preempt(data.draw(st.sampled_from(self.scheduler.running)))

    @rule()
    def reset(self) -> None:
        cached = self.pool.num_cached
        assert self.scheduler.prefix_cache.reset() == cached
        assert self.pool.num_cached == 0

    @rule(data=st.data())
    def distrust(self, data: st.DataObject) -> None:
        if not self.scheduler.running:
            return
        sequence = data.draw(st.sampled_from(self.scheduler.running))
        blocks = list(sequence.block_table)
        self.scheduler.release(sequence)
        self.scheduler.prefix_cache.distrust(blocks)
        assert not set(blocks) & set(self.pool.idle)

    @invariant()
    def every_block_is_held_cached_or_blank(self) -> None:
        held = Counter(block for sequence in self.sequences for block in sequence.held_blocks)
        assert self.pool._holders == [held[block] for block in range(self.POOL)]
        assert sorted([*held, *self.pool.idle, *self.pool._blank]) == list(range(self.POOL))
        assert self.pool.num_used == len(held)
        assert self.pool.num_used + self.pool.num_free == self.POOL
        for sequence in self.sequences:
            assert len(set(sequence.held_blocks)) == len(sequence.held_blocks)
            assert set(sequence.block_table) == set(sequence.held_blocks)

    @invariant()
    def every_sequence_reads_its_own_text(self) -> None:
        for sequence in self.sequences:
            computed = sequence.num_computed_tokens
            for position in range(max(computed + 1 - (self.WINDOW or computed + 1), 0), computed):
                assert self.contents[self.place(sequence, position)] == text(sequence, position)

    @invariant()
    def cached_blocks_are_full_and_follow_cached_ones(self) -> None:
        cache = self.scheduler.prefix_cache
        assert self.pool._kept == set(cache._entries) == set(cache._blocks.values())
        for block, entry in cache._entries.items():
            assert all((block, offset) in self.contents for offset in range(self.SIZE))
            assert entry.parent == b"" or entry.parent in cache._blocks

    @invariant()
    def whoever_replays_the_changes_knows_the_cache(self) -> None:
        cache = self.scheduler.prefix_cache
        self.replica.apply(cache.take_changes())
        assert set(self.replica.tokens) == {public_hash(digest) for digest in cache._blocks}
        for entry in cache._entries.values():
            parent = public_hash(entry.parent) if entry.parent else None
            assert self.replica.parents[public_hash(entry.digest)] == parent
        for sequence in self.sequences:
            chain = sequence.block_digests[: sequence.num_cached_blocks]
            assert self.WINDOW or set(chain) <= set(cache._blocks)
            for index in range(len([digest for digest in chain if digest in cache._blocks])):
                tokens = tuple(sequence.token_ids[index * self.SIZE : (index + 1) * self.SIZE])
                assert self.replica.tokens[public_hash(sequence.block_digests[index])] == tokens

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
            self.every_sequence_reads_its_own_text()
        assert not self.scheduler.has_work
        assert self.pool.num_used == 0
        self.whoever_replays_the_changes_knows_the_cache()
        assert len(self.replica.tokens) == self.pool.num_cached


def text(sequence: Sequence, position: int) -> object:
    return sequence.request.cache_root, tuple(sequence.token_ids[: position + 1])


class WindowedMachine(SchedulerMachine):
    """No layer looks further back than a window, which is not a whole number of blocks."""

    WINDOW = 6

    @invariant()
    def nothing_behind_the_window_is_held(self) -> None:
        for sequence in self.sequences:
            computed = sequence.num_computed_tokens
            behind = min((computed + 1 - self.WINDOW) // self.SIZE, computed // self.SIZE - 1)
            assert sequence.num_released_blocks == max(behind, 0)

    def write(self, granted: list[Scheduled]) -> None:
        super().write(granted)
        for sequence in self.sequences:
            assert len(sequence.held_blocks) <= self.scheduler.window.most_blocks(self.BUDGET)


class NarrowMachine(WindowedMachine):
    """The window is narrower than a block."""

    WINDOW = 2


class EndlessMachine(WindowedMachine):
    """Sequences are longer than the pool, which others share."""

    LONGEST = 90


class TightMachine(EndlessMachine):
    """The pool is just large enough for one sequence that computes one token per step."""

    POOL = 3


TestSchedulerMachine = SchedulerMachine.TestCase
TestWindowedMachine = WindowedMachine.TestCase
TestNarrowMachine = NarrowMachine.TestCase
TestEndlessMachine = EndlessMachine.TestCase
TestTightMachine = TightMachine.TestCase
for machine in (
    TestSchedulerMachine,
    TestWindowedMachine,
    TestNarrowMachine,
    TestEndlessMachine,
    TestTightMachine,
):
    machine.settings = settings(max_examples=examples(70), stateful_step_count=40, deadline=None)
del machine  # else it is a test of its own, the last one again
# Between the others: no window, the narrowest one, and the smallest pool.
TestWindowedMachine.pytestmark = TestEndlessMachine.pytestmark = [long]
