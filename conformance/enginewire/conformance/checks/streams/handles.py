"""MUX: the numbers by which requests are named on a stream, used twice, again, and to abort."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import (
    FIRST,
    LAGGING_TOKENS,
    open_stream,
    require_cancelled,
)
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.watching import freed
from enginewire.conformance.wire.multiplexed import Handle, Multiplexed
from enginewire.conformance.wire.stream import reason_name
from enginewire.conformance.wire.violation import expect, expect_equal


@check("MUX-05", needs=(*SHAPE, FIRST), alone=True)
async def live_handles_are_not_used_twice(ctx: Context) -> None:
    """The stream ends; its request is over, and holds nothing."""
    async with open_stream(ctx) as stream:
        live = ctx.long_request()
        stream.submit(1, live)
        await stream.until(lambda: bool(stream.handle(1).tokens))
        stream.send(pb.Submit(handle=1, generate=ctx.request()))
        exchange = await stream.finish()
        message = "the second use of a live handle does not end the stream"
        is_invalid = exchange.code is grpc.StatusCode.INVALID_ARGUMENT
        expect(is_invalid, message, expected="INVALID_ARGUMENT", seen=exchange.status)
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


@check("MUX-07", needs=(*WHOLE, FIRST, "ABO-01", "ABO-05"), phase=Phase.LOAD, alone=True)
async def handles_are_aborted(ctx: Context) -> None:
    """One that is not there, a running one with the handle 0, one of the same frame; the others go on.

    Those of another stream as well, where the same handles are live.
    """
    async with open_stream(ctx) as stream, open_stream(ctx) as other:
        for number in range(3):
            other.submit(number, ctx.request(max_tokens=ctx.tokens(LAGGING_TOKENS)))
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
    stream.send(stream.submitted(2, ctx.long_request()), abort=(3, 0, 2))
    await stream.until_ended(0, 2, within=2 * ctx.bounds.answer)
    await stream.until_ended(1)
    for number in (0, 2):
        require_cancelled(stream.handle(number))
    _require_whole(stream.handle(1), "an abort touched another handle")


def _require_whole(handle: Handle, message: str) -> None:
    seen = [reason_name(output.finish_reason) for output in handle.terminals]
    expect_equal(seen, ["LENGTH"] * handle.choices, message)
