"""The scheduler and its block pool keep their promises under any order of events."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine_server.interface import GenerateContext
from engine_server.torch_engine.kv_cache import BlockPool
from engine_server.torch_engine.params import SamplingParams, StopRules
from engine_server.torch_engine.prefix_cache import chain_root, public_hash
from engine_server.torch_engine.scheduler import AdmissionRules, Scheduled, Scheduler
from engine_server.torch_engine.sequence import Request, Sequence
from tests.engine_server.torch_engine.replica import Replica

serials = count(1)


def make_request(
    num_prompt: int,
    max_tokens: int,
    n: int = 1,
    priority: int = 0,
    deadline: float | None = None,
    salt: str | None = None,
    first: int = 1,
) -> Request:
    """A prompt of `first`, 1, 1, …; without a `salt` it stays out of the prefix cache."""
    stop = StopRules(max_total_tokens=num_prompt + max_tokens)
    context = GenerateContext("r", deadline)
    urgency = (priority, 0.0, next(serials))
    root = None if salt is None else chain_root(salt)
    prompt = [first, *[1] * (num_prompt - 1)]
    request = Request(context, prompt, SamplingParams(seed=0), stop, urgency, cache_root=root)
    request.sequences = [Sequence(request, index) for index in range(n)]
    return request


def compute(scheduler: Scheduler, granted: list[Scheduled]) -> None:
    """What a model run does to the sequences."""
    for grant in granted:
        samples = grant.samples
        scheduler.advance(grant)
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
    assert len(first.output_token_ids[0]) == 6
    assert len(second.output_token_ids[0]) == 4
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


def test_a_less_urgent_sequence_never_overtakes_one_that_does_not_fit():
    scheduler = Scheduler(BlockPool(8, 4), max_num_seqs=4, max_num_batched_tokens=32)
    scheduler.add(make_request(12, 8))
    compute(scheduler, scheduler.schedule())
    large, small = make_request(20, 4), make_request(2, 2)
    scheduler.add(large)
    scheduler.add(small)
    compute(scheduler, scheduler.schedule())
    assert scheduler.waiting == [*large.sequences, *small.sequences]
    run(scheduler)


def test_choices_wait_for_the_first_to_compute_the_prompt_and_then_share_it():
    scheduler = Scheduler(BlockPool(16, 4), max_num_seqs=4, max_num_batched_tokens=8)
    request = make_request(13, 3, n=3, salt="")
    scheduler.add(request)
    other = make_request(2, 5)
    scheduler.add(other)
    steps = [scheduler.schedule()]
    compute(scheduler, steps[0])
    steps.append(scheduler.schedule())
    assert lengths(steps[0]) == [8]
    assert lengths(steps[1]) == [5, 2], "those behind do not wait with the choices"
    compute(scheduler, steps[1])
    assert sorted(lengths(scheduler.schedule())) == [1, 1, 1, 1]
    tables = [sequence.block_table for sequence in request.sequences]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert len({table[3] for table in tables}) == 3
    assert request.num_cached_tokens == 0


def test_choices_that_wait_for_their_prompt_keep_their_places():
    scheduler = Scheduler(BlockPool(32, 4), max_num_seqs=3, max_num_batched_tokens=32)
    request = make_request(13, 3, n=3, salt="")
    scheduler.add(request)
    scheduler.add(make_request(2, 5))
    compute(scheduler, scheduler.schedule())
    scheduler.schedule()
    assert scheduler.running == request.sequences


def test_a_preempted_sequence_finds_its_own_blocks_again():
    scheduler = Scheduler(BlockPool(8, 4), max_num_seqs=4, max_num_batched_tokens=32)
    request = make_request(10, 8, salt="")
    scheduler.add(request)
    compute(scheduler, scheduler.schedule())
    compute(scheduler, scheduler.schedule())
    sequence = request.sequences[0]
    before = list(sequence.block_table)
    scheduler._preempt(sequence)
    assert (sequence.num_computed_tokens, scheduler.pool.num_used) == (0, 0)
    assert lengths(scheduler.schedule()) == [4]
    assert sequence.block_table[:2] == before[:2]
    assert request.num_cached_tokens == 0, "what it computed itself is no saving"


def test_what_was_built_on_a_broken_block_is_forgotten_with_it():
    scheduler = Scheduler(BlockPool(16, 4), max_num_seqs=4, max_num_batched_tokens=32)
    scheduler.add(make_request(30, 1, salt=""))
    run(scheduler)
    scheduler.add(make_request(30, 1, salt="", first=2))
    run(scheduler)
    assert scheduler.pool.num_cached == 14
    broken = make_request(6, 9, salt="")
    scheduler.add(broken)
    compute(scheduler, scheduler.schedule())
    blocks = list(broken.sequences[0].block_table)
    scheduler.release(broken.sequences[0])
    scheduler.prefix_cache.distrust(blocks)
    assert scheduler.pool.num_cached == 7
    other = make_request(30, 1, salt="", first=2)
    scheduler.add(other)
    scheduler.schedule()
    assert other.num_cached_tokens == 28


def test_blocks_that_another_sequence_holds_need_no_room():
    scheduler = Scheduler(BlockPool(9, 4), max_num_seqs=4, max_num_batched_tokens=64)
    first, second, stranger = (make_request(21, 3, salt=salt) for salt in ("", "", "b"))
    scheduler.add(first)
    compute(scheduler, scheduler.schedule())
    scheduler.add(second)
    scheduler.schedule()
    assert scheduler.running == [*first.sequences, *second.sequences]
    scheduler.release(second.sequences[0])
    scheduler.add(stranger)
    scheduler.schedule()
    assert scheduler.waiting == stranger.sequences


def test_a_prompt_that_is_cached_leaves_its_last_token_to_compute():
    scheduler = Scheduler(BlockPool(8, 4), max_num_seqs=4, max_num_batched_tokens=32)
    for expected_tokens, cached in ((12, 0), (4, 8)):
        request = make_request(12, 1, salt="")
        scheduler.add(request)
        granted = scheduler.schedule()
        assert lengths(granted) == [expected_tokens]
        assert request.num_cached_tokens == cached
        compute(scheduler, granted)
    assert (scheduler.pool.num_used, scheduler.pool.num_cached) == (0, 3)


def test_a_prefill_limit_leaves_decodes_alone():
    rules = AdmissionRules(max_batch_prefill_tokens=3)
    scheduler = Scheduler(BlockPool(64, 4), 4, 32, rules)
    scheduler.add(make_request(2, 5))
    compute(scheduler, scheduler.schedule())
    scheduler.add(make_request(8, 1))
    assert [lengths(step) for step in run(scheduler)] == [[1, 3], [1, 3], [1, 2], [1]]


def test_a_total_limit_counts_the_longest_outputs():
    scheduler = Scheduler(BlockPool(64, 4), 4, 32, AdmissionRules(max_batch_total_tokens=20))
    first, second, third = (make_request(4, 6) for _ in range(3))
    for request in (first, second, third):
        scheduler.add(request)
    compute(scheduler, scheduler.schedule())
    assert scheduler.running == [*first.sequences, *second.sequences]
    large = make_request(30, 30)
    scheduler.add(large)
    run(scheduler)
    assert len(large.output_token_ids[0]) == 30, "what is over the limit alone runs alone"


def test_few_waiting_sequences_wait_for_company_but_not_for_ever():
    rules = AdmissionRules(waiting_served_ratio=0.5, max_waiting_tokens=6)
    scheduler = Scheduler(BlockPool(64, 4), 8, 32, rules)
    for _ in range(4):
        scheduler.add(make_request(2, 30))
    compute(scheduler, scheduler.schedule())
    scheduler.add(make_request(2, 30))
    joined = [len(scheduler.running)]
    for _ in range(7):
        compute(scheduler, scheduler.schedule())
        joined.append(len(scheduler.running))
    assert joined == [4] * 7 + [5]
    scheduler.add(make_request(2, 30))
    scheduler.add(make_request(2, 30))
    compute(scheduler, scheduler.schedule())
    assert len(scheduler.running) == 7


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, releases, preempts and resets in any order over a pool that is too small for everybody.

    `contents` is what a model would have written: for each place in the cache everything that its key and
    value depend on, which is the whole text before it.
    """

    POOL, SIZE, SEQS, BUDGET = 8, 4, 3, 5

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.POOL, self.SIZE)
        self.scheduler = Scheduler(self.pool, self.SEQS, self.BUDGET)
        self.sequences: list[Sequence] = []
        self.contents: dict[tuple[int, int], object] = {}
        self.replica = Replica(self.SIZE)

    @rule(
        prompt=st.integers(1, 20),
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
        held = Counter(block for sequence in self.sequences for block in sequence.block_table)
        assert self.pool._holders == [held[block] for block in range(self.POOL)]
        assert sorted([*held, *self.pool.idle, *self.pool._blank]) == list(range(self.POOL))
        assert self.pool.num_used == len(held)
        assert self.pool.num_used + self.pool.num_free == self.POOL
        for sequence in self.sequences:
            assert len(set(sequence.block_table)) == len(sequence.block_table)

    @invariant()
    def every_sequence_reads_its_own_text(self) -> None:
        for sequence in self.sequences:
            for position in range(sequence.num_computed_tokens):
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
            for index in range(sequence.num_cached_blocks):
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


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
