"""DRN: taking a server out of service without losing a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, cast

from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.conformance.checks.server.drains import (
    DRAIN,
    UNAVAILABLE,
    begun,
    beyond_the_slots,
    final_of,
    first_of,
    in_flight,
    state_name,
    still_computed,
)
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.context import INVALID, LASTING_SECONDS, Context, require_refusal
from enginewire.conformance.session.halves import handoff, prefilled
from enginewire.conformance.session.saturation import beyond_memory, short_of_memory
from enginewire.conformance.session.watching import still_running
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.stream import Choice, Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

STREAMS: Final = 4
CALLERS: Final = 3
KINDS: Final = 5
RUNS, WAITS = 1, 2
"""Handles of a stream."""


@check("DRN-01", phase=Phase.DESTRUCTIVE, needs=WHOLE)
async def streams_finish(ctx: Context) -> None:
    """Several in flight, read to their ends; of one, some choices wait for a slot."""
    await _finish(ctx, [*await in_flight(ctx, STREAMS), *await beyond_the_slots(ctx)])


@check("DRN-01", variant="prefill", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "DRN-01"))
async def who_is_computed_finishes(ctx: Context) -> None:
    """A request that runs, and whose prompt is not computed yet."""
    streams = await still_computed(ctx)
    if not streams:
        raise NotApplicable("no prompt takes so long that it can be seen to be computed")
    await _finish(ctx, streams)


async def _finish(ctx: Context, streams: Sequence[Stream]) -> None:
    drain = await begun(ctx)
    for stream in await asyncio.gather(*(stream.end() for stream in streams)):
        wanted = stream.request.request.stop_conditions.max_tokens
        for index in range(num_choices(stream.request.request)):
            choice = stream.choices.get(index, Choice(index))
            seen = f"{len(choice.tokens)} tokens, {choice.reason_name}, {stream.exchange.status}"
            is_whole = len(choice.tokens) == wanted and choice.reason_name == "LENGTH"
            message = f"choice {index} of a request in flight did not finish as it would have"
            expected = f"{wanted} tokens, LENGTH, OK"
            expect(is_whole and stream.exchange.is_ok, message, expected=expected, seen=seen)
    await final_of(drain)


@check("DRN-01", variant="preempted", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "DRN-01", "INF-07"))
async def who_gave_up_memory_ends_too(ctx: Context) -> None:
    """A drain begins while a request waits for memory that others took from it.

    Who had no token yet may be handed back.
    """
    async with short_of_memory(ctx, beyond_memory(ctx)) as streams:
        await begun(ctx, ctx.bounds.check)
    for stream in streams:
        if not stream.tokens and stream.exchange.code in UNAVAILABLE:
            require_refusal(stream.exchange, UNAVAILABLE, reason=pb.ERROR_REASON_DRAINING)
            continue
        reason = (await stream.ok()).choice.reason_name
        expect_equal(reason, "LENGTH", "a drain cuts a request that gave up its memory")


@check("DRN-02", phase=Phase.DESTRUCTIVE, needs=SHAPE)
async def later_ones_are_refused(ctx: Context) -> None:
    """While a stream is still in flight, and after the end of the drain: requests of several kinds."""
    await ctx.generate(ctx.request())
    for exchange in await _refusals(ctx):
        require_refusal(exchange, UNAVAILABLE, reason=pb.ERROR_REASON_DRAINING)


@check(
    "DRN-02",
    variant="multiplexed",
    gate="multiplexed",
    phase=Phase.DESTRUCTIVE,
    needs=(*SHAPE, "DRN-02", "MUX-01", "MUX-04"),
)
async def later_submits_are_refused(ctx: Context) -> None:
    """On streams that were open before the drain: one has a request in flight, the other none any more."""
    async with open_stream(ctx) as busy, open_stream(ctx) as idle:
        idle.submit(RUNS, ctx.request())
        await idle.until_ended(RUNS)
        busy.submit(RUNS, ctx.long_request())
        await busy.until(lambda: bool(busy.handle(RUNS).tokens))
        await begun(ctx)
        for stream in (busy, idle):
            stream.submit(WAITS, ctx.request())
            await stream.until_ended(WAITS)
            status, detail = stream.handle(WAITS).status or pb.Status(), pb.ErrorDetail()
            expected = UNAVAILABLE[0].value[0]
            expect_equal(status.code, expected, "a request that came over an open stream was not refused")
            is_told = any(entry.Unpack(detail) for entry in status.details)
            is_draining = is_told and detail.reason == pb.ERROR_REASON_DRAINING
            expect(is_draining, "the reason is another one", expected="DRAINING", seen=detail.reason)


@check("DRN-02", variant="joined", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-02", "DRN-03"))
async def the_grace_of_others_lets_nobody_in(ctx: Context) -> None:
    """A drain without a grace, while a stream is in flight, then one with a long grace."""
    (stream,) = await in_flight(ctx, 1, is_long=True)
    grace = ctx.bounds.answer
    await begun(ctx)
    await begun(ctx, 2 * grace, grace=grace)
    exchange = await ctx.refused(ctx.request())
    stream.cancel()
    require_refusal(exchange, UNAVAILABLE, reason=pb.ERROR_REASON_DRAINING)


@check("DRN-03", phase=Phase.DESTRUCTIVE, needs=SHAPE)
async def callers_join(ctx: Context) -> None:
    """Three at once, with a stream in flight, and one after the end."""
    (stream,) = await in_flight(ctx, 1)
    drains = [await begun(ctx) for _ in range(CALLERS)]
    await asyncio.gather(stream.end(), *(final_of(drain) for drain in drains))
    await final_of(await begun(ctx))


@check("DRN-04", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-01"))
async def is_visible_at_once(ctx: Context) -> None:
    """With the first message of the drain, while two streams are in flight."""
    await _is_visible(ctx)


@check("DRN-04", variant="grace", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-04"))
async def is_visible_in_the_grace(ctx: Context) -> None:
    """The same while new requests may still be let in: that is what tells callers to go elsewhere."""
    await _is_visible(ctx, grace=2 * ctx.bounds.answer)


async def _is_visible(ctx: Context, grace: float = 0) -> None:
    stream, _ = await in_flight(ctx, 2, is_long=True)
    # Nobody may remember what this one says.
    await ctx.client.health()
    await begun(ctx, grace=grace)
    state, health = (await ctx.client.load()).state, await ctx.client.health()
    await still_running(ctx, stream)
    name = pb.EngineState.Name(state)
    expect_equal(name, "ENGINE_STATE_DRAINING", "Load.state does not show a drain at once")
    seen, expected = health_types.NAMES[health], health_types.NAMES[health_types.NOT_SERVING]
    expect_equal(seen, expected, "health does not show a drain at once")


@check("DRN-05", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-01"))
async def drained_means_empty(ctx: Context) -> None:
    """At the final state nothing runs any more."""
    streams = await in_flight(ctx, 2)
    several = ctx.lasting_request(2 * LASTING_SECONDS, n=ctx.choices(2))
    streams += [await ctx.start(several).first_token(), *await beyond_the_slots(ctx)]
    drain = await begun(ctx)
    reading = asyncio.gather(*(stream.end() for stream in streams))
    final = await final_of(drain)
    load = await ctx.client.load()
    await reading
    expect_equal(state_name(final), "DRAIN_STATE_DRAINED", "a drain with time enough has another end")
    is_empty = not (load.running or load.waiting or final.running or final.waiting)
    expect(is_empty, "a drain ends while requests are in flight", seen=f"running {load.running}")


@check("DRN-05", variant="timed-out", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-01"))
async def a_deadline_ends_it(ctx: Context) -> None:
    """Shorter than what is in flight, requests of several kinds and a probe, and than the grace."""
    streams = await in_flight(ctx, KINDS, is_long=True)
    deadline = ctx.bounds.reaction / 10
    started, drain = time.monotonic(), await begun(ctx, deadline, grace=2 * ctx.bounds.answer)
    final = await final_of(drain, within=deadline + ctx.bounds.reaction)
    took = time.monotonic() - started
    await asyncio.gather(*(stream.end() for stream in streams))
    if streams[0].choice.reason_name == "LENGTH":
        raise NotApplicable("the longest request ends before the shortest drain")
    expect_equal(state_name(final), "DRAIN_STATE_TIMED_OUT", "a drain that runs out of time has another end")
    expect(took >= deadline / 2, "a drain ends before its deadline", expected=deadline, seen=f"{took:.2f} s")
    for stream in streams:
        reasons = {choice.reason_name for choice in stream.choices.values()}
        end = f"{', '.join(sorted(reasons))}, {stream.exchange.status}"
        expect_equal(end, "CANCELLED, OK", "what a drain cuts short ends in another way")


@check("DRN-06", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-01"))
async def control_goes_on(ctx: Context) -> None:
    """While two streams are in flight: one is aborted by its id, then the other as all there are."""
    stream, other = await in_flight(ctx, 2, is_long=True)
    await begun(ctx)
    await ctx.client.load()
    await ctx.client.info()
    await ctx.client.health()
    (result,) = await ctx.client.abort([stream.request.request_id])
    await stream.ok()
    if result.outcome == pb.ABORT_OUTCOME_FINISHED and stream.choice.reason_name == "LENGTH":
        raise NotApplicable("the longest request ends before it can be aborted")
    expect_equal(stream.choice.reason_name, "CANCELLED", "an abort during a drain does not work")
    exchange = await ctx.client.ask("EngineService.Abort", pb.AbortRequest(all=True))
    has_ended = not (await ctx.client.load()).running
    other.cancel()
    named = [each.request_id for each in cast(pb.AbortResponse, exchange.response()).results]
    message = "an abort of all during a drain leaves out what runs"
    expect(has_ended or other.request.request_id in named, message, seen=named)


@check("DRN-08", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-02"))
async def refusals_are_retryable(ctx: Context) -> None:
    """During the drain and after it."""
    for exchange in await _refusals(ctx):
        detail = exchange.detail
        expect(detail and detail.retryable, "the refusal is not called retryable", seen=exchange.status)


@check("DRN-09", phase=Phase.DESTRUCTIVE, gate="prefill", needs=("DIS-02",))
async def handoffs_are_waited_for(ctx: Context) -> None:
    """One that nobody claims: a drain ends when it has expired, or at its own deadline."""
    client = ctx.prefill()
    started = time.monotonic()
    handed = handoff(await prefilled(ctx, ctx.request(), client))
    if not handed.ttl_seconds:
        raise NotApplicable("the hand-off does not say when it expires")
    final = await final_of(await begun(ctx, ctx.bounds.reaction, client))
    took, ttl = time.monotonic() - started, handed.ttl_seconds
    is_early = final.state == pb.DRAIN_STATE_DRAINED and took < 0.9 * ttl
    message = "a drain ends while nobody has claimed a hand-off"
    expect(not is_early, message, expected=f"its expiry after {ttl} s", seen=f"DRAINED after {took:.2f} s")


@check("DRN-10", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-03", "DRN-05", "DRN-05/timed-out"))
async def the_earliest_deadline_wins(ctx: Context) -> None:
    """A patient drain, then one without any time, which cuts short what the first one waits for."""
    await _are_cut_short(ctx, None, 0.0)


@check("DRN-10", variant="grace", phase=Phase.DESTRUCTIVE, needs=("DRN-10",))
async def the_earliest_deadline_ends_a_grace(ctx: Context) -> None:
    """The same while the first one still has its grace."""
    await _are_cut_short(ctx, None, 0.0, grace=2 * ctx.bounds.answer)


@check("DRN-10", variant="first", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-10"))
async def the_earliest_deadline_wins_as_the_first(ctx: Context) -> None:
    """A drain with little time, then a patient one, which gives it no more."""
    await _are_cut_short(ctx, ctx.bounds.reaction / 4, 20 * ctx.bounds.answer)


@check("DRN-10", variant="negative", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-10"))
async def no_deadline_is_negative(ctx: Context) -> None:
    """By a second and by less, asked of a server that serves, and goes on to, and of one that drains."""
    await in_flight(ctx, 1, is_long=True)
    await _refuses_negative_deadlines(ctx)
    state = pb.EngineState.Name((await ctx.client.load()).state)
    expect_equal(state, "ENGINE_STATE_READY", "a drain that was refused has begun")
    await begun(ctx)
    await _refuses_negative_deadlines(ctx)


async def _refuses_negative_deadlines(ctx: Context) -> None:
    for deadline in (Duration(seconds=-1), Duration(nanos=-500_000_000)):
        drain = ctx.client.call(DRAIN, pb.DrainRequest(deadline=deadline))
        if await anext(drain, None) is not None:
            drain.cancel()
            seen = state_name(first_of(drain))
            raise Violation("a negative deadline is not refused", expected="INVALID_ARGUMENT", seen=seen)
        require_refusal(drain.exchange, INVALID, "deadline")


async def _are_cut_short(ctx: Context, first: float | None, second: float, grace: float = 0) -> None:
    """Two drains with these deadlines end at the earlier one, and the stream that they wait for."""
    (stream,) = await in_flight(ctx, 1, is_long=True)
    drains = [await begun(ctx, first, grace=grace), await begun(ctx, second)]
    shortest = second if first is None else min(first, second)
    tokens = stream.request.request.stop_conditions.max_tokens
    left = stream.exchange.started_at + tokens * ctx.bounds.least_itl - time.monotonic()
    finals = [await final_of(drain, within=shortest + ctx.bounds.reaction) for drain in drains]
    await stream.end()
    # Whoever ignores the earlier deadline lets the request end by itself.
    if stream.choice.reason_name == "LENGTH" and left < shortest + ctx.bounds.reaction / 8:
        raise NotApplicable("the longest request ends before the shortest drain")
    seen = [state_name(final) for final in finals]
    expect_equal(seen, ["DRAIN_STATE_TIMED_OUT"] * 2, "two drains with two deadlines have another end")


@check("DRN-11", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-03"))
async def the_grace_lets_in(ctx: Context) -> None:
    """A request by a call and one over a stream right after the beginning of a drain with a long grace.

    Each of them behind a caller, of whom the second one joins and asks for no grace.
    """
    grace, started = 2 * ctx.bounds.answer, time.monotonic()
    for is_multiplexed, own in ((False, grace), (True, 0.0)):
        await begun(ctx, 2 * grace, grace=own)
        stream = await ctx.start(ctx.request(), is_multiplexed=is_multiplexed).end()
        if not stream.exchange.is_ok and time.monotonic() - started > grace / 2:
            raise NotApplicable("the machine is too busy to send a request within the grace")
        expect(stream.exchange.is_ok, "a request within the grace is refused", seen=stream.exchange.status)


@check("DRN-12", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "DRN-01", "INF-08"))
async def progress_is_the_load(ctx: Context) -> None:
    """Beside requests of one choice and of several, and one of which a choice waits for a slot."""
    several = ctx.start(ctx.long_request(n=ctx.choices(2)))
    streams = [
        *await in_flight(ctx, 2, is_long=True),
        await several.first_token(),
        *await beyond_the_slots(ctx),
    ]
    before, drain = await ctx.client.load(), await begun(ctx)
    after, progress = await ctx.client.load(), first_of(drain)
    for stream in streams:
        stream.cancel()
    if before.preemptions != after.preemptions:
        raise NotApplicable("some gave up their memory meanwhile")
    for name in ("running", "waiting"):
        least, most = sorted((getattr(before, name), getattr(after, name)))
        seen, message = getattr(progress, name), f"a drain and GetLoad count {name} requests in two ways"
        expect(least <= seen <= most, message, expected=f"{least} to {most}", seen=seen)


async def _refusals(ctx: Context) -> list[Exchange]:
    """Generate during a drain and after it."""
    (stream,) = await in_flight(ctx, 1)
    drain = await begun(ctx)
    during = [await ctx.refused(request) for request in ctx.unlike(ctx.request, KINDS)]
    await stream.end()
    await drain.finish()
    return [*during, *[await ctx.refused(request) for request in ctx.unlike(ctx.request, KINDS)]]
