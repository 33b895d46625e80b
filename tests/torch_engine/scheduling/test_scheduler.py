"""Who runs, who waits and who gives way, one rule at a time."""

from __future__ import annotations

import pytest

from enginewire.torch_engine.requests.sequence import HandedOver
from enginewire.torch_engine.scheduling.admission_rules import AdmissionRules
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.scheduler import Scheduler
from tests.torch_engine.scheduling.scheduling import compute, lengths, make_request, run


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
    again = scheduler.schedule()
    assert lengths(again) == [2]
    assert sequence.block_table[:2] == before[:2]
    assert request.num_cached_tokens == 0, "what it computed itself is no saving"


def test_output_that_is_computed_again_has_a_step_without_the_prompt():
    scheduler = Scheduler(BlockPool(8, 4), max_num_seqs=4, max_num_batched_tokens=32)
    scheduler.add(make_request(10, 8))
    compute(scheduler, scheduler.schedule())
    for _ in range(3):
        compute(scheduler, scheduler.schedule())
    scheduler._preempt(scheduler.running[0])
    prompt = scheduler.schedule()
    assert (lengths(prompt), prompt[0].repeats_decodes, prompt[0].samples) == ([10], False, False)
    compute(scheduler, prompt)
    output = scheduler.schedule()
    assert (lengths(output), output[0].repeats_decodes, output[0].samples) == ([4], True, True)


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


def test_prompts_make_decodes_wait_for_a_part_of_a_step_only():
    rules = AdmissionRules(max_mixed_prefill_tokens=3)
    scheduler = Scheduler(BlockPool(64, 4), 4, 8, rules)
    scheduler.add(make_request(7, 3))
    steps = [scheduler.schedule()]
    compute(scheduler, steps[0])
    scheduler.add(make_request(12, 1))
    steps += run(scheduler)
    assert [lengths(step) for step in steps] == [[7], [1, 3], [1, 3], [6]]


@pytest.mark.parametrize(("limit", "num_running"), [(19, 1), (20, 2), (29, 2), (30, 3)])
def test_a_total_limit_counts_the_longest_outputs(limit, num_running):
    scheduler = Scheduler(BlockPool(64, 4), 4, 32, AdmissionRules(max_batch_total_tokens=limit))
    requests = [make_request(4, 6) for _ in range(3)]
    for request in requests:
        scheduler.add(request)
    compute(scheduler, scheduler.schedule())
    assert scheduler.running == [request.sequences[0] for request in requests[:num_running]]
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
    assert scheduler.num_concats == {"wait_exceeded": 1, "backpressure": 0}
    scheduler.add(make_request(2, 30))
    scheduler.add(make_request(2, 30))
    compute(scheduler, scheduler.schedule())
    assert len(scheduler.running) == 7
    assert scheduler.num_concats == {"wait_exceeded": 1, "backpressure": 1}


def test_a_batch_that_begins_or_cannot_grow_is_joined_by_nobody():
    scheduler = Scheduler(BlockPool(64, 4), 2, 32)
    for _ in range(3):
        scheduler.add(make_request(2, 3))
    compute(scheduler, scheduler.schedule())
    compute(scheduler, scheduler.schedule())
    assert sum(scheduler.num_concats.values()) == 0
    run(scheduler)
    assert len(scheduler.running) == 0
    assert sum(scheduler.num_concats.values()) == 0


def test_a_long_output_behind_a_window_holds_a_few_blocks():
    scheduler = Scheduler(BlockPool(9, 4), max_num_seqs=4, max_num_batched_tokens=32, window=8)
    requests = [make_request(10, 20, salt=salt) for salt in (None, "", "b")]
    for request in requests:
        scheduler.add(request)
    most = 0
    while scheduler.has_work:
        compute(scheduler, scheduler.schedule())
        most = max(most, *(len(request.sequences[0].held_blocks) for request in requests))
    assert (most, scheduler.num_preemptions, scheduler.pool.num_used) == (3, 0, 0)


def test_a_prompt_behind_a_window_is_admitted_for_the_blocks_it_holds_at_most():
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=8, window=8)
    scheduler.add(make_request(6, 30))
    compute(scheduler, scheduler.schedule())
    long = make_request(100, 9)
    scheduler.add(long)
    most = scheduler.window.most_blocks(8)
    while scheduler.has_work:
        granted = scheduler.schedule()
        assert granted
        compute(scheduler, granted)
        assert long.sequences[0] not in scheduler.waiting
        assert len(long.sequences[0].held_blocks) <= most == 5
    assert len(long.output_token_ids[0]) == 9
    assert (scheduler.num_preemptions, scheduler.pool.num_used) == (0, 0)


def test_a_prompt_that_may_hold_more_than_is_free_waits():
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=8, window=8)
    first, second, third = (make_request(100, 9) for _ in range(3))
    scheduler.add(first)
    while len(first.sequences[0].held_blocks) < 3:
        compute(scheduler, scheduler.schedule())
    scheduler.add(second)
    scheduler.add(third)
    compute(scheduler, scheduler.schedule())
    assert scheduler.waiting == third.sequences, "five blocks and one for each that runs: more than are free"


@pytest.mark.parametrize("max_mixed", [None, 2])
@pytest.mark.parametrize(("num_blocks", "num_running"), [(6, 1), (7, 2)])
def test_a_prompt_may_hold_what_it_holds_in_a_step_of_its_own(num_blocks, num_running, max_mixed):
    rules = AdmissionRules(max_mixed_prefill_tokens=max_mixed)
    scheduler = Scheduler(BlockPool(num_blocks, 4), 4, max_num_batched_tokens=6, rules=rules, window=8)
    scheduler.add(make_request(6, 30))
    compute(scheduler, scheduler.schedule())
    assert (scheduler.pool.num_used, scheduler.window.most_blocks(6)) == (2, 4)
    scheduler.add(make_request(100, 9))
    scheduler.schedule()
    assert len(scheduler.running) == num_running


def test_a_step_takes_no_more_of_a_long_prompt_than_the_pool_can_hold():
    scheduler = Scheduler(BlockPool(4, 4), max_num_seqs=4, max_num_batched_tokens=64, window=6)
    request = make_request(50, 3)
    scheduler.add(request)
    steps = [sum(lengths(step)) for step in run(scheduler)]
    assert sum(steps) == 50 + 3 - 1
    assert max(steps) == steps[0] == 16
    assert scheduler.num_preemptions == 0


def test_a_cached_prefix_behind_a_window_is_not_held():
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=64, window=6)
    scheduler.add(make_request(40, 1, salt=""))
    run(scheduler)
    again = make_request(60, 1, salt="")
    scheduler.add(again)
    scheduler.schedule()
    sequence = again.sequences[0]
    assert again.num_cached_tokens == 40
    assert (sequence.num_released_blocks, scheduler.pool.num_used) == (8, len(sequence.held_blocks))
    assert len(sequence.held_blocks) <= 12


def test_a_cached_prefix_behind_a_window_needs_no_room():
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=64, window=6)
    scheduler.add(make_request(40, 1, salt=""))
    run(scheduler)
    other, again = make_request(6, 30), make_request(44, 1, salt="")
    scheduler.add(other)
    compute(scheduler, scheduler.schedule())
    assert (scheduler.pool.num_free, scheduler.pool.num_cached) == (10, 10)
    scheduler.add(again)
    scheduler.schedule()
    assert scheduler.running == [*other.sequences, *again.sequences]
    assert again.num_cached_tokens == 40


@pytest.mark.parametrize(("num_blocks", "joins"), [(10, False), (11, True)])
def test_whoever_fits_exactly_joins(num_blocks, joins):
    scheduler = Scheduler(BlockPool(num_blocks, 4), max_num_seqs=4, max_num_batched_tokens=64)
    for _ in range(2):
        scheduler.add(make_request(10, 9))
    compute(scheduler, scheduler.schedule())
    assert scheduler.pool.num_used == 6
    scheduler.add(newcomer := make_request(12, 9))  # three blocks, and one for each of the two that run
    scheduler.schedule()
    assert (newcomer.sequences[0] in scheduler.running) == joins


def test_cached_blocks_that_nobody_holds_need_room():
    scheduler = Scheduler(BlockPool(8, 4), max_num_seqs=4, max_num_batched_tokens=64)
    scheduler.add(make_request(24, 1, salt=""))
    run(scheduler)
    scheduler.add(make_request(6, 9))
    compute(scheduler, scheduler.schedule())
    assert (scheduler.pool.num_free, scheduler.pool.num_cached) == (6, 6)
    again = make_request(25, 1, salt="")
    scheduler.add(again)
    scheduler.schedule()
    assert scheduler.waiting == again.sequences


@pytest.mark.parametrize(("handed_over", "steps"), [(15, [1]), (16, [4, 4, 4, 4, 1]), (40, [4] * 10 + [1])])
def test_what_is_handed_over_is_computed_again_where_it_leaves_no_room(handed_over, steps):
    scheduler = Scheduler(BlockPool(4, 4), max_num_seqs=4, max_num_batched_tokens=4, window=6)
    request = make_request(handed_over + 1, 1)
    request.handed_over = HandedOver(handed_over, bytearray(), lambda: None)
    scheduler.add(request)
    assert [sum(lengths(step)) for step in run(scheduler)] == steps
    assert (len(request.output_token_ids[0]), scheduler.pool.num_used) == (1, 0)


def test_what_is_handed_over_waits_for_room_for_all_of_it():
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=8, window=6)
    scheduler.add(make_request(6, 5))
    compute(scheduler, scheduler.schedule())
    request = make_request(41, 1)
    request.handed_over = HandedOver(40, bytearray(), lambda: None)
    scheduler.add(request)
    scheduler.schedule()
    assert scheduler.waiting == request.sequences
    run(scheduler)
    assert (len(request.output_token_ids[0]), scheduler.pool.num_used) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "released"), [({"beams": object()}, 0), ({"hands_over": True}, 0), ({}, 8)]
)
def test_who_is_read_as_a_whole_gives_nothing_back(changes, released):
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=64, window=6)
    request = make_request(40, 5)
    for name, value in changes.items():
        setattr(request, name, value)
    scheduler.add(request)
    compute(scheduler, scheduler.schedule())
    assert request.sequences[0].num_released_blocks == released


@pytest.mark.parametrize(("num_blocks", "takes_any"), [(2, False), (3, True)])
def test_texts_of_any_length_are_taken_where_a_window_and_one_token_fit(num_blocks, takes_any):
    scheduler = Scheduler(BlockPool(num_blocks, 4), max_num_seqs=1, max_num_batched_tokens=1, window=6)
    assert scheduler.takes_any_length == takes_any


def test_who_waits_with_a_token_that_nobody_has_read_goes_on_waiting():
    scheduler = Scheduler(BlockPool(12, 4), max_num_seqs=4, max_num_batched_tokens=64)
    request = make_request(5, 3)
    scheduler.add(request)
    request.sequences[0].num_unread_tokens = 1
    assert scheduler.schedule() == []
    request.sequences[0].num_unread_tokens = 0
    assert lengths(scheduler.schedule()) == [5]


def test_whoever_only_waits_for_its_last_token_to_be_read_is_not_preempted():
    scheduler = Scheduler(BlockPool(6, 4), max_num_seqs=4, max_num_batched_tokens=64)
    requests = [make_request(9, 1), make_request(7, 1), make_request(2, 1)]
    for request in requests:
        scheduler.add(request)
    granted = scheduler.schedule()
    for grant in granted:
        scheduler.advance(grant)
    assert scheduler.schedule() == []
    assert scheduler.running == [grant.sequence for grant in granted]
    assert (scheduler.waiting, scheduler.num_preemptions) == (requests[2].sequences, 0)


def test_whoever_shares_a_prefix_behind_a_window_needs_room_for_what_comes_after_it():
    scheduler = Scheduler(BlockPool(8, 4), max_num_seqs=4, max_num_batched_tokens=8, window=8)
    first, second = (make_request(17, 9, salt="") for _ in range(2))
    scheduler.add(first)
    while first.sequences[0].num_pending_tokens > 1:
        compute(scheduler, scheduler.schedule())
    long = make_request(60, 1, salt="")
    scheduler.add(long)
    scheduler.schedule()
    assert scheduler.waiting == long.sequences, "it gives shared blocks back and needs five of its own"
    scheduler.release(long.sequences[0])
    scheduler.add(second)
    scheduler.schedule()
    assert scheduler.waiting == []


def test_what_a_window_left_behind_is_found_again_from_its_beginning():
    scheduler = Scheduler(BlockPool(16, 4), max_num_seqs=4, max_num_batched_tokens=32, window=8)
    scheduler.add(make_request(25, 4, salt=""))
    run(scheduler)
    assert scheduler.pool.num_cached == 7
    scheduler.pool.free(scheduler.pool.allocate(12))
    assert scheduler.pool.num_cached == 4
    again = make_request(25, 4, salt="")
    scheduler.add(again)
    scheduler.schedule()
    assert again.num_cached_tokens == 16, "the end was given up first"


def test_what_was_released_by_a_broken_sequence_is_distrusted_too():
    scheduler = Scheduler(BlockPool(16, 4), max_num_seqs=4, max_num_batched_tokens=32, window=8)
    broken = make_request(25, 4, salt="")
    scheduler.add(broken)
    compute(scheduler, scheduler.schedule())
    sequence, cache = broken.sequences[0], scheduler.prefix_cache
    blocks = cache.blocks_of(sequence)
    assert (len(set(blocks)), len(sequence.held_blocks), scheduler.pool.num_cached) == (7, 3, 4)
    scheduler.release(sequence)
    cache.distrust(blocks)
    assert len(cache) == 0
