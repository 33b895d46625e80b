"""Waits until the load shows something or streams end, within the bound of reactions. Knows no rule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.loads import describe_load, is_idle
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation

MOST_LOOKS: Final = 400
"""So that whoever waits for long asks less often."""

COUNT_LOOKS: Final = 5
COUNTED: Final = 0.05
"""Of the reaction bound: so much later than its slot is free may what ended be counted."""

NOTICED: Final = 0.125
"""Of the reaction bound: within so much does a server see that a caller has left, or that it is late."""


async def until(
    ctx: Context, holds: Callable[[pb.Load], bool], message: str, *, expected: str = "", within: float = 0
) -> pb.Load:
    """The first load of which `holds` is true; a Violation when none is in time."""
    bound = within or ctx.bounds.reaction
    looks = Looks(bound)
    while not holds(load := await ctx.client.load()):
        if looks.are_over():
            raise Violation(message, expected=expected, seen=describe_load(load))
        await pause(bound / MOST_LOOKS)
    return load


async def left_the_queue(ctx: Context, slots: int, before: int, message: str) -> None:
    """Wait until no more than `before` wait, while all slots are taken.

    A Violation when that takes the reaction bound, or when those who left waited until there were slots.
    """
    began = taken_until = time.monotonic()
    looks = Looks(ctx.bounds.reaction)
    while True:
        looked_at, load = time.monotonic(), await ctx.client.load()
        have_slots = load.running < slots
        is_late = taken_until - began > NOTICED * ctx.bounds.reaction if have_slots else looks.are_over()
        if is_late:
            raise Violation(message, seen=describe_load(load))
        if load.waiting <= before:
            return
        taken_until = taken_until if have_slots else looked_at
        await pause()


async def freed(ctx: Context, requests: list[pb.GenerateRequest], within: float = 0) -> None:
    """Wait until nothing of the requests is held any more; what stays is aborted, for the checks to come."""
    message = "what a request held was not freed"
    try:
        await until(ctx, is_idle, message, expected="nothing running, waiting or held", within=within)
    except Violation:
        await ctx.client.abort([request.request_id for request in requests])
        raise


async def still_running(ctx: Context, stream: Stream) -> None:
    """NotApplicable when the stream ended by itself already: then nothing can be taken from it."""
    if (await ctx.client.load()).running:
        return
    if not await ended_by_itself(stream):
        raise Violation("Load.running is 0 while a request is generated", seen=stream.exchange.status)
    raise NotApplicable("the longest request ends before anything can be done to it")


async def ended_by_itself(stream: Stream) -> bool:
    """Read on; True when it was served to its natural end."""
    await stream.end()
    return stream.exchange.is_ok and stream.choice.reason_name == "LENGTH"


async def end_soon(ctx: Context, streams: Sequence[Stream], otherwise: str) -> None:
    """Read them to their ends; a Violation when that takes longer than the reaction bound."""
    try:
        async with asyncio.timeout(ctx.bounds.reaction):
            await asyncio.gather(*(stream.end() for stream in streams))
    except TimeoutError:
        raise Violation(otherwise, expected=f"an end within {ctx.bounds.reaction:.1f} s") from None


async def all_counted(ctx: Context) -> pb.Load:
    """The load of an idle engine, once no more of what has ended is counted."""
    load = await ctx.idle()
    for _ in range(COUNT_LOOKS):
        await pause(COUNTED * ctx.bounds.reaction)
        before, load = load, await ctx.idle()
        if load.requests_finished == before.requests_finished:
            break
    return load
