"""WLD: the load as a stream, and ERR-17 without it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import dropwhile
from typing import Final, cast

from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check, negative
from enginewire.conformance.session.context import (
    INVALID,
    LEFT_OUT,
    Context,
    require_refusal,
)
from enginewire.conformance.session.saturation import queued, saturated
from enginewire.conformance.session.watching import still_running
from enginewire.conformance.wire.client import Call
from enginewire.conformance.wire.exchange import Arrived
from enginewire.conformance.wire.loads import describe_load, is_idle
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect

NAME: Final = "DiscoveryService.WatchLoad"
SHORTEST: Final = 10
USUAL: Final = 100
SHORT: Final = 40
"""A machine that is too busy for more messages than the shortest interval allows can show this one broken."""
LONG_SECONDS: Final = 0.3
"""At least, of an interval in which a request begins or ends."""
WATCHED_SECONDS: Final = 0.5
LULL_SECONDS: Final = 0.3
HOUR: Final = 3_600_000
SECOND: Final = 1000
OVER_A_SECOND: Final = 1.1
"""Seconds, of a watch: whoever makes a second of all longer intervals sends a load too many by then."""
PUNCTUAL: Final = 0.9
"""The part of an interval after which a timer may be early."""
FIRST: Final = "WLD-01"


@check("WLD-01", needs=("HLT-03",), alone=True)
async def the_load_comes_at_once(ctx: Context) -> None:
    """Without any change, and with the longest interval there is."""
    for interval in (None, SHORTEST, HOUR):
        load = await _next(_watch(ctx, interval))
        expect(load.state, "the first load of a watch names no state", seen=load)


@check("WLD-02", needs=(*SHAPE, FIRST, "CAN-01"), phase=Phase.LOAD, alone=True)
async def changes_are_sent(ctx: Context) -> None:
    """A request begins, and ends: at the shortest interval, and long before the next message is due."""
    idle = await ctx.idle()
    watches = [_watch(ctx, interval) for interval in (SHORTEST, _long(ctx))]
    for watch in watches:
        await _next(watch)
    stream = await ctx.start(ctx.long_request()).first_token()

    # A fast engine ends it within the interval: then its tokens have changed.
    def has_changed(load: pb.Load) -> bool:
        return bool(load.running) or load.tokens_generated != idle.tokens_generated

    changed = [await _until(ctx, watch, idle, has_changed) for watch in watches]
    stream.cancel()
    for watch, load in zip(watches, changed, strict=True):
        await _until(ctx, watch, load, is_idle)


@check("WLD-02", variant="queued", needs=(*WHOLE, "WLD-02", "INF-08", "CON-03"), phase=Phase.LOAD, alone=True)
async def the_queue_is_sent(ctx: Context) -> None:
    """A request that waits for a slot: nothing else changes."""
    async with saturated(ctx) as running:
        watch = _watch(ctx, SHORTEST)
        load = await _next(watch)
        waiting = await queued(ctx, running)
        load = await _until(ctx, watch, load, lambda load: load.waiting or load.running < len(running))
        if not load.waiting:
            raise NotApplicable("the slots are free again before a watch can tell who waits")
        waiting.cancel()
        watch.cancel()


@check(
    "WLD-02",
    variant="state",
    phase=Phase.DESTRUCTIVE,
    alone=True,
    needs=("WLD-02", "DRN-04", "HLT-04/cleaned-up"),
)
async def the_state_is_sent(ctx: Context) -> None:
    """A drain of an idle server, and a Cleanup where that is served: nothing else changes. Two watch it."""
    watches = [_watch(ctx, SHORTEST) for _ in range(2)]
    loads = [await _next(watch) for watch in watches]
    await ctx.client.call("EngineService.Drain", pb.DrainRequest()).finish()
    loads = [
        await _until(ctx, watch, load, lambda load: load.state != pb.ENGINE_STATE_READY)
        for watch, load in zip(watches, loads, strict=True)
    ]
    if ctx.capabilities.cleanup:
        await ctx.client.ask("EngineService.Cleanup", pb.CleanupRequest(), timeout=ctx.bounds.answer)
        for watch, load in zip(watches, loads, strict=True):
            await _until(ctx, watch, load, lambda load: load.state == pb.ENGINE_STATE_STOPPED)
        # What is answered here is for WLD-01, which holds in every state.
        await anext(_watch(ctx, SHORTEST), None)
    for watch in watches:
        watch.cancel()


@check("WLD-02", variant="draining", phase=Phase.DESTRUCTIVE, alone=True, needs=("WLD-02/state", "CAN-01"))
async def changes_are_sent_during_a_drain(ctx: Context) -> None:
    """A drain begins beside a request, which ends after it."""
    stream = await ctx.start(ctx.long_request()).first_token()
    watch = _watch(ctx, SHORTEST)
    load = await _next(watch)
    drain = ctx.client.call("EngineService.Drain", pb.DrainRequest())
    await anext(drain, None)
    load = await _until(ctx, watch, load, lambda load: load.state != pb.ENGINE_STATE_READY)
    await still_running(ctx, stream)
    stream.cancel()
    await _until(ctx, watch, load, is_idle)
    watch.cancel()
    await drain.finish()


@check("WLD-03", needs=(*SHAPE, FIRST), phase=Phase.LOAD, alone=True)
async def the_interval_holds(ctx: Context) -> None:
    """While requests come and go: the usual interval, named or not, a drawn and a long one, and short ones.

    Before the first of them nothing happens for some intervals, of which nothing is made up for.
    """
    idle = await ctx.idle()
    drawn = random.Random(f"{ctx.session.options.seed}/watch").randint(2 * USUAL, SECOND)
    intervals = (SHORTEST, USUAL, SHORT, drawn, HOUR, None, SHORTEST)
    watches = [(interval or USUAL, _watch(ctx, interval)) for interval in intervals]
    first = time.monotonic()
    counting = [asyncio.ensure_future(watch.finish()) for _, watch in watches]
    await asyncio.sleep(LULL_SECONDS)
    began = time.monotonic()
    end = max(began + WATCHED_SECONDS, first + OVER_A_SECOND)
    while time.monotonic() < end:
        await ctx.generate(ctx.request())
    for (interval, watch), counted in zip(watches, counting, strict=True):
        watch.cancel()
        arrived = (await counted).arrived
        count = len(arrived)
        # From the call on: what was sent before its first load was read may have been on its way for long.
        most = (time.monotonic() - watch.exchange.started_at) * 1000 / (interval * PUNCTUAL) + 1
        message = f"the load is sent more often than every {interval} ms"
        expect(count <= most, message, expected=f"at most {int(most)}", seen=count)
        _nothing_is_made_up_for(arrived, interval, began, idle)


def _nothing_is_made_up_for(arrived: Sequence[Arrived], interval: int, began: float, idle: pb.Load) -> None:
    """What tells of requests was sent after the first one began, however late it came."""

    def tells(message: Message) -> bool:
        load = cast(pb.WatchLoadResponse, message).load
        return bool(load.running or load.waiting) or load.tokens_generated > idle.tokens_generated

    since = [each.at for each in dropwhile(lambda each: not tells(each.message), arrived)]
    for number, at in enumerate(since):
        most = (at - began) * 1000 / (interval * PUNCTUAL) + 2
        message = f"behind a lull the load is sent more often than every {interval} ms"
        expect(number + 1 <= most, message, expected=f"at most {most:.0f}", seen=number + 1)


@check("WLD-04", needs=(FIRST,), alone=True)
async def short_intervals_are_refused(ctx: Context) -> None:
    """Shorter than 10 ms, and none at all."""
    for interval in (0, 1, SHORTEST - 1):
        call = _watch(ctx, interval)
        if await anext(call, None) is not None:
            raise Violation(f"an interval of {interval} ms is served", expected="INVALID_ARGUMENT", seen="OK")
        require_refusal(call.exchange, INVALID, "min_interval_ms")


@negative("watch_load")
async def is_not_served(ctx: Context) -> None:
    """With the usual interval."""
    call = _watch(ctx, None)
    await anext(call, None)
    call.cancel()
    require_refusal(call.exchange, LEFT_OUT)


def _long(ctx: Context) -> int:
    """Milliseconds: two first tokens, and two that follow, may come meanwhile."""
    seconds = max(LONG_SECONDS, 2 * (ctx.bounds.ttft + ctx.bounds.itl))
    return round(1000 * seconds * ctx.bounds.scale)


def _watch(ctx: Context, interval: int | None) -> Call:
    return ctx.client.call(NAME, pb.WatchLoadRequest(min_interval_ms=interval), timeout=ctx.bounds.check / 4)


async def _until(ctx: Context, watch: Call, load: pb.Load, holds: Callable[[pb.Load], object]) -> pb.Load:
    """The first load, of this one and those to come, for which something holds: it has to come soon."""
    try:
        async with asyncio.timeout(ctx.bounds.reaction):
            while not holds(load):
                load = await _next(watch)
    except TimeoutError:
        seen = describe_load(load)
        raise Violation("a change is not sent", expected="the load after it", seen=seen) from None
    return load


async def _next(watch: Call) -> pb.Load:
    message = await anext(watch, None)
    if message is None:
        raise Violation("the watch brings no load", expected="a load", seen=watch.exchange.status)
    return cast(pb.WatchLoadResponse, message).load
