"""MUX: the numbers by which requests are named on a stream, used twice, again, and to abort."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import (
    FIRST,
    LAGGING_TOKENS,
    SHORT,
    ends_of,
    is_cut,
    open_stream,
    require_cancelled,
)
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import LONG_REASON
from enginewire.conformance.session.watching import freed
from enginewire.conformance.wire.multiplexed import Handle, Multiplexed
from enginewire.conformance.wire.stopwatch import Stopwatch, within
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

NO_TIMES: Final = {4: 0.0, 5: -1.0}
"""Timeouts that are not positive, by handle."""
GONE, NEVER = 3, 4
"""Handles whose request has ended, and that nobody used."""
AGAIN: Final = (*WHOLE, "MUX-06", "MUX-12")
SECOND: Final = 1.0
PAST: Final = 1.2
LONGER: Final = 1.7
"""No number of whole seconds either."""


@check("MUX-05", needs=(*SHAPE, FIRST), alone=True)
async def live_handles_are_not_used_twice(ctx: Context) -> None:
    """The stream ends; its request is over, and holds nothing. After a token, and in one frame.

    Also for a request that would be refused under any handle.
    """
    for second in (ctx.request(), ctx.request(model="no-such-model")):
        async with open_stream(ctx) as stream:
            live = ctx.long_request()
            stream.submit(1, live)
            await stream.until(partial(_has_tokens, stream))
            stream.send(pb.Submit(handle=1, generate=second))
            await _ends_with_its_request(ctx, stream, live)
    async with open_stream(ctx) as stream:
        live = ctx.long_request()
        stream.send(stream.submitted(1, live), pb.Submit(handle=1, generate=ctx.request()))
        await _ends_with_its_request(ctx, stream, live)


def _has_tokens(stream: Multiplexed) -> bool:
    return bool(stream.handle(1).tokens)


async def _ends_with_its_request(ctx: Context, stream: Multiplexed, live: pb.GenerateRequest) -> None:
    message = "the second use of a live handle does not end the stream"
    with suppress(TimeoutError):
        await within(ctx.bounds.answer, stream.finish())
    is_invalid = stream.exchange.code is grpc.StatusCode.INVALID_ARGUMENT
    expect(is_invalid, message, expected="INVALID_ARGUMENT", seen=stream.exchange.status)
    await freed(ctx, [live])


@check("MUX-06", needs=(*SHAPE, FIRST, "MUX-04"), alone=True)
async def handles_are_free_after_their_end(ctx: Context) -> None:
    """After a terminal output and after a rejection."""
    async with open_stream(ctx) as stream:
        for request in (ctx.request(), ctx.request(model="no-such-model"), ctx.request()):
            stream.submit(1, request)
            await stream.until_ended(1)
        status = stream.handle(1).status
        expect(status is None, "a handle cannot be used again after its end", expected="OK", seen=status)


@check("MUX-12", needs=(*SHAPE, FIRST), phase=Phase.LOAD, alone=True)
async def timeouts_end_their_request(ctx: Context) -> None:
    """Two that pass one after the other, in a frame with a request without, which does not end with them.

    None at all is no time to be served in.
    """
    expected, are_seen = grpc.StatusCode.DEADLINE_EXCEEDED.value[0], False
    async with open_stream(ctx) as stream, Stopwatch() as watch:
        times: dict[int, float | None] = {1: SHORT, 2: 2 * SHORT, 3: None, **NO_TIMES}
        requests = {number: ctx.request() if number in NO_TIMES else ctx.long_request() for number in times}
        stream.send(*(stream.submitted(number, requests[number], times[number]) for number in times))
        for number in (1, 2):
            await stream.until_ended(number)
            handle = stream.handle(number)
            # What ends by itself at about that time has nothing to be cut, whenever this machine sees it.
            if not is_cut(handle) and watch.seconds < number * SHORT + ctx.bounds.reaction / 2:
                continue
            message, are_seen, status = "a request has another end after its timeout", True, handle.status
            seen = status or ends_of(handle)
            expect(bool(status and status.code == expected), message, expected=expected, seen=seen)
        stream.send(abort=(3,))
        await stream.until_ended(3, *NO_TIMES)
        status = stream.handle(3).status
        expect(status is None, "a timeout ended another request", seen=status)
        invalid = grpc.StatusCode.INVALID_ARGUMENT.value[0]
        for number, seconds in NO_TIMES.items():
            status = stream.handle(number).status
            message = f"a timeout of {seconds:.0f} s is not refused"
            expect(bool(status and status.code == invalid), message, expected=invalid, seen=status)
    if not are_seen:
        raise NotApplicable("the longest request ends before a timeout can be seen to end it")


@check("MUX-12", variant="used-again", needs=AGAIN, phase=Phase.LOAD, alone=True, costly=True)
async def timeouts_are_of_their_request(ctx: Context) -> None:
    """When one of two requests ends, its handle is used again without a timeout; both go on past that time.

    The timeout of the other one is longer, and no number of whole seconds.
    """
    async with open_stream(ctx) as stream:
        started = time.monotonic()
        stream.submit(1, ctx.long_request(), timeout=LONGER)
        stream.submit(2, ctx.request(), timeout=SECOND)
        await stream.until_ended(2)
        stream.submit(2, ctx.long_request())
        await stream.until(lambda: stream.handle(2).is_answered)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(started + PAST - time.monotonic(), 0)):
                await stream.until_ended(1, 2)
        is_early = time.monotonic() < started + LONGER
        first, second = stream.handle(1), stream.handle(2)
    if first.has_ended and second.has_ended and not (is_cut(first) or is_cut(second)):
        raise NotApplicable("the longest request ends before a timeout can be seen to end it")
    if is_early:
        _goes_on(first, "a request ended before its timeout")
    _goes_on(second, "a request ended by the timeout of an earlier one of its handle")


def _goes_on(handle: Handle, message: str) -> None:
    seen = handle.status or ends_of(handle)
    expect(not is_cut(handle), message, expected="that it goes on", seen=seen)


@check(
    "MUX-07",
    needs=(*WHOLE, FIRST, "MUX-06", "ABO-01", "ABO-05", "ABO-06"),
    phase=Phase.LOAD,
    alone=True,
)
async def handles_are_aborted(ctx: Context) -> None:
    """One that is not there, a running one with the handle 0, one of the same frame; the others go on.

    Those of another stream as well, where the same handles are live, and the id of one that has ended here.
    """
    async with open_stream(ctx) as stream, open_stream(ctx) as other:
        ended = ctx.request()
        stream.submit(GONE, ended)
        await stream.until_ended(GONE)
        for number in range(3):
            again = {} if number else {"request_id": ended.request_id}
            other.submit(number, ctx.request(max_tokens=ctx.tokens(LAGGING_TOKENS), **again))
        await other.until(lambda: all(other.handle(number).is_answered for number in range(3)))
        await _are_aborted(ctx, stream)
        await other.until_ended(*range(3))
        for number in range(3):
            _require_whole(other.handle(number), "an abort touched a handle of another stream")


@check("MUX-07", variant="used-again", needs=(*WHOLE, "MUX-06", "MUX-07"), phase=Phase.LOAD, alone=True)
async def handles_that_were_used_before_are_aborted(ctx: Context) -> None:
    """The same, after another request of each handle has ended."""
    async with open_stream(ctx) as stream:
        for number in range(3):
            stream.submit(number, ctx.request())
        await stream.until_ended(*range(3))
        await _are_aborted(ctx, stream)


async def _are_aborted(ctx: Context, stream: Multiplexed) -> None:
    stream.submit(0, ctx.long_request())
    stream.submit(1, ctx.request(max_tokens=ctx.tokens(LAGGING_TOKENS)))
    await stream.until(lambda: bool(stream.handle(0).tokens))
    stream.send(stream.submitted(2, ctx.long_request()), abort=(NEVER, GONE, 0, 2), reason=LONG_REASON)
    await stream.until_ended(0, 2, within=2 * ctx.bounds.answer)
    for number in (0, 2):
        require_cancelled(stream.handle(number))
    # Nothing that is named there is live, and nothing of that is for those who come next.
    stream.send(abort=(NEVER, 0))
    for number in (NEVER, 0):
        stream.submit(number, ctx.request())
    await stream.until_ended(1, NEVER, 0)
    _require_whole(stream.handle(1), "an abort touched another handle")
    for number in (NEVER, 0):
        _require_whole(stream.handle(number), "an abort touched a later request of its handle")


def _require_whole(handle: Handle, message: str) -> None:
    expect_equal(ends_of(handle), ["LENGTH"] * handle.choices, message)
