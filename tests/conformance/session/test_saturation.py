from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.saturation import all_queued, queued, saturated
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.wire.violation import expect
from tests.conformance.judging import judged, made_up


class Roomy(Reference):
    """Answers last longer than the kit waits for anything on a busy machine."""

    settings = replace(Settings(), context_length=2**15, total_blocks=2**15)


class OfTwoRanks(Roomy):
    """Takes what has no rank to the first one."""

    settings = replace(Roomy.settings, capabilities=(*Roomy.settings.capabilities, "data_parallel"), ranks=2)

    def fits(self, job: Job) -> bool:
        rank = job.request.routing.dp_rank
        there = sum(each.request.routing.dp_rank == rank for each in self.running)
        return super().fits(job) and there < self.settings.max_num_seqs


class HidesItsQueue(Roomy):
    def load(self) -> pb.Load:
        load = super().load()
        load.waiting = 0
        return load


class RefusesWhatHasToWait(Roomy):
    """As grpc.aio's own `abort` does it: with initial metadata."""

    async def generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        if len(self.live) >= self.settings.max_num_seqs:
            await call.context.send_initial_metadata(())
            raise Refusal(pb.ERROR_REASON_QUEUE_FULL, "there is no queue", retry_after=0.1)
        async for response in super().generate(request, call):
            yield response


async def queueing(make: type[Reference], timeout: float = 0, time_scale: float = 1.0) -> Outcome:
    """What becomes of a check that fills the slots and waits for a request to be seen in the queue."""

    async def look(ctx: Context) -> None:
        async with saturated(ctx) as running:
            seen = (await ctx.client.load()).running
            expect(seen == len(running) == slots_of(ctx.config), "not every slot is taken", seen=seen)
            await queued(ctx, running, timeout=timeout)

    report = await judged(make, [made_up("STR-01", look)], time_scale=time_scale)
    return next(outcome for outcome in report.outcomes if outcome.key == "STR-01")


async def test_a_request_is_seen_to_wait_while_the_slots_are_taken() -> None:
    assert (await queueing(Roomy)).status is Status.PASS


async def test_slots_are_full_when_nobody_else_holds_one_any_more() -> None:
    async def look(ctx: Context) -> None:
        left = await ctx.start(ctx.long_request()).first_token()
        asyncio.get_running_loop().call_later(0.2, left.cancel)
        async with saturated(ctx):
            load = await ctx.client.load()
            expect(load.waiting == 0, "one of those who are to hold the slots waits", seen=load.waiting)

    report = await judged(Roomy, [made_up("STR-01", look)])
    assert next(outcome for outcome in report.outcomes if outcome.key == "STR-01").status is Status.PASS


async def test_all_ranks_are_filled_before_a_request_is_expected_to_wait() -> None:
    assert (await queueing(OfTwoRanks)).status is Status.PASS


async def waiting_together(make: type[Reference]) -> tuple[list[pb.GenerateRequest], Outcome]:
    """The requests that wait together, of all that were meant to."""
    seen: list[pb.GenerateRequest] = []

    async def look(ctx: Context) -> None:
        async with saturated(ctx) as running:
            waiting = await all_queued(ctx, running, ctx.long_request)
            seen.extend(stream.request for stream in waiting)
            expect((await ctx.client.load()).waiting == len(waiting), "they do not all wait")

    report = await judged(make, [made_up("STR-01", look)])
    return seen, next(outcome for outcome in report.outcomes if outcome.key == "STR-01")


class PlaceForTwo(Roomy):
    """Who wait beside full slots, which it does not say."""

    def admit(self, job: Job) -> None:
        if len(self.running) == self.settings.max_num_seqs and len(self.waiting) >= 2:
            raise Refusal(pb.ERROR_REASON_QUEUE_FULL, "the queue is full", retry_after=0.1)
        super().admit(job)


async def test_a_plain_request_and_every_option_wait_together() -> None:
    (plain, *others), outcome = await waiting_together(Roomy)
    assert outcome.status is Status.PASS
    options = [{field.name for field, _ in other.request.sampling_options.ListFields()} for other in others]
    assert {"n", "seed", "logit_bias"} <= set().union(*options), "each of them has half"
    assert plain.request.sampling_options == pb.SamplingOptions(temperature=0.0)
    assert not any(other.request.routing.HasField("priority") for other in others), "it may take a slot"


async def test_fewer_wait_together_where_the_queue_is_short() -> None:
    some, outcome = await waiting_together(PlaceForTwo)
    assert (len(some), outcome.status) == (2, Status.PASS)


async def test_a_queue_that_is_never_seen_is_a_violation() -> None:
    # It polls, beside full slots, for as long as a reaction may take.
    outcome = await queueing(HidesItsQueue, time_scale=0.1)
    assert (outcome.status, outcome.expected) == (Status.FAIL, "1")


async def test_a_deadline_that_passes_before_anybody_looked_says_nothing() -> None:
    outcome = await queueing(HidesItsQueue, timeout=0.05)
    assert outcome.status is Status.NOT_APPLICABLE
    assert outcome.message == "a deadline passes before its request can be seen to wait"


async def test_a_refusal_with_metadata_is_no_request_that_waits() -> None:
    outcome = await queueing(RefusesWhatHasToWait)
    assert outcome.status is Status.NOT_APPLICABLE
    assert outcome.message == "a request that has to wait is refused here"
