"""Requests of others, which fill every slot of the target for as long as somebody wants that.

They are short, of all kinds, and there are always some more than fit: whoever comes waits its turn.
Judges nothing; the monitor looks at some of them. Knows no requirement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.session.company import Company, draw
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import DIFFERENT
from enginewire.conformance.session.session import Session
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.violation import NotApplicable, Violation

CROWDED: Final = 1.5
"""Choices for each slot: when some of the others end, more of them wait already."""

TOKENS: Final = 48
FRAMES: Final = 300
"""Of a stream, before the next one begins."""

WATCHED: Final = 2
"""Streams that the monitor looks at: the others are like them."""

ABORTED: Final = 7
"""Each so many-th of the requests is aborted."""


@asynccontextmanager
async def crowded(session: Session) -> AsyncIterator[None]:
    """A full engine, from the time when the first of the others run."""
    ctx, is_there = Context(session, "crowd"), asyncio.Event()
    filling = asyncio.ensure_future(_fill(ctx, is_there))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(ctx.bounds.answer):
                await is_there.wait()
        yield
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        await ctx.close()


async def _fill(ctx: Context, is_there: asyncio.Event) -> None:
    """One stream after the other. The end of one overlaps with the beginning of the next."""
    ending = set[asyncio.Task[None]]()
    try:
        with suppress(Violation, NotApplicable):
            for number in count():
                client = ctx.session.client()
                stream = Multiplexed(client, ctx.bounds.check)
                await _fill_for_a_while(ctx, stream, is_there)
                task = asyncio.ensure_future(_end(stream))
                ending.add(task)
                task.add_done_callback(ending.discard)
                if number >= WATCHED:
                    ctx.session.forget([client])
    finally:
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def _fill_for_a_while(ctx: Context, stream: Multiplexed, is_there: asyncio.Event) -> None:
    submits = list[pb.Submit]()
    companies = _companies(ctx)
    most = CROWDED * slots_of(ctx.config) + 1
    while sum(stream.handle(submit.handle).choices for submit in submits) < most:
        submits.append(stream.submitted(len(submits), _request(ctx, len(submits), companies)))
    try:
        stream.send(*submits)
        for frame in range(FRAMES):
            if await stream.read() is None:
                raise Violation("the stream of the others ended", seen=stream.exchange.status)
            is_there.set()
            ended = [number for number in range(len(submits)) if stream.handle(number).has_ended]
            again = [stream.submitted(number, _request(ctx, number, companies)) for number in ended]
            aborted = tuple(number for number in ended[:1] if frame % ABORTED == 0)
            if again:
                stream.send(*again, abort=aborted)
    except asyncio.CancelledError:
        await _end(stream, at_once=True)
        raise


async def _end(stream: Multiplexed, *, at_once: bool = False) -> None:
    """What is live is aborted, or may finish."""
    try:
        if not at_once:
            stream.half_close()
            await stream.finish()
    finally:
        await stream.close()


def _companies(ctx: Context) -> list[Company]:
    """What the others bring along. Whoever always has the higher priority leaves no slot to anybody."""
    drawn = (draw(ctx.session.options.seed, number, ctx.config) for number in range(DIFFERENT))
    return [company.without("priority") for company in drawn]


def _request(ctx: Context, number: int, companies: Sequence[Company]) -> pb.GenerateRequest:
    """Of a length of its own, so that not all end at the same time."""
    request = ctx.request(max_tokens=ctx.tokens(TOKENS + 3 * (number % DIFFERENT)))
    return companies[number % DIFFERENT].joined(request)
