"""Drafts take what is left of a step, and nothing from anybody."""

from __future__ import annotations

import pytest

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Request
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.drafting.drafter import Drafting, settle
from enginewire.torch_engine.scheduling.scheduler import SCORED_TOKENS, Scheduler
from tests.torch_engine.scheduling.scheduling import compute, lengths, make_request


def scheduler_of(num_blocks: int, num_tokens: int, most: int = 5, max_num_seqs: int = 4) -> Scheduler:
    scheduler = Scheduler(BlockPool(num_blocks, 4), max_num_seqs, num_tokens)
    scheduler.drafting = Drafting(most, (1, 1), 0.01)
    return scheduler


def decoding(scheduler: Scheduler, *requests: Request) -> None:
    """Let them all run, and have one token."""
    for request in requests:
        scheduler.add(request)
    while any(not request.sequences[0].num_output_tokens for request in requests):
        step(scheduler)


def step(scheduler: Scheduler) -> list[Scheduled]:
    granted = scheduler.schedule()
    compute(scheduler, granted)
    for grant in granted:
        if grant.draft:
            settle(grant, len(grant.draft), scheduler.pool)
    return granted


def test_a_decode_gets_its_token_and_as_many_drafted_ones_as_there_may_be():
    scheduler = scheduler_of(20, 16)
    decoding(scheduler, make_request(6, 30))
    num_drafted = 0
    for _ in range(5):
        (grant,) = step(scheduler)
        num_drafted += len(grant.draft)
        # The period of the output is guessed on: it is all twos, once there are two of them.
        assert list(grant.draft) in ([], [2] * 5)
        assert grant.num_tokens == 1 + len(grant.draft)
        assert len(grant.sequence.block_table) == scheduler.pool.blocks_for(
            grant.sequence.num_computed_tokens
        )
    assert grant.draft
    assert grant.sequence.drafter.num_drafted == num_drafted


def test_drafts_share_what_the_others_leave_of_the_budget():
    scheduler = scheduler_of(60, 8)
    decoding(scheduler, make_request(3, 40), make_request(3, 40))
    while not step(scheduler)[1].draft:
        pass
    assert lengths(step(scheduler)) == [6, 2]
    scheduler.add(make_request(20, 5))
    granted = scheduler.schedule()
    assert lengths(granted) == [1, 1, 6], "a prompt comes before drafts"


def test_drafts_take_no_block_while_somebody_waits():
    scheduler = scheduler_of(8, 30, max_num_seqs=1)
    decoding(scheduler, first := make_request(3, 20))
    while not step(scheduler)[0].draft:
        pass
    sequence = first.sequences[0]
    scheduler.add(make_request(3, 4))
    for _ in range(6):
        computed, held = sequence.num_computed_tokens, len(sequence.block_table)
        (grant,) = scheduler.schedule()
        room = max(held, scheduler.pool.blocks_for(computed + 1)) * 4 - computed - 1
        assert len(grant.draft) == min(room, 5)
        compute(scheduler, [grant])
        settle(grant, len(grant.draft), scheduler.pool)


def test_drafts_preempt_nobody():
    scheduler = scheduler_of(6, 30)
    decoding(scheduler, make_request(3, 9), make_request(3, 9))
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.num_preemptions == 0
    assert scheduler.pool.num_used == 0


def test_a_step_has_no_more_drafted_rows_than_scored_ones():
    scheduler = scheduler_of(200, 2000, most=64, max_num_seqs=8)
    decoding(scheduler, *[make_request(3, 120) for _ in range(8)])
    for _ in range(4):
        granted = step(scheduler)
        assert sum(len(grant.draft) for grant in granted) <= SCORED_TOKENS
    assert sum(len(grant.draft) for grant in granted) == SCORED_TOKENS


def test_the_end_of_a_prompt_is_computed_without_a_draft():
    scheduler = scheduler_of(20, 30)
    scheduler.add(make_request(9, 5, first=1))
    (grant,) = scheduler.schedule()
    assert (grant.num_tokens, grant.draft) == (9, ())


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_nothing_is_drafted_behind_the_last_token(max_tokens):
    scheduler = scheduler_of(20, 30)
    scheduler.add(make_request(6, max_tokens, first=2))
    while scheduler.has_work:
        for grant in step(scheduler):
            total = 6 + max_tokens
            assert grant.sequence.num_computed_tokens + len(grant.draft) < total
