"""DRN: what waits for a slot when a drain begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.server.drains import begun
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import WHOLE, Phase, check
from enginewire.conformance.session.context import Context, require_refusal
from enginewire.conformance.session.saturation import all_queued, saturated
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.session.watching import all_counted, end_soon
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stream import reason_name
from enginewire.conformance.wire.violation import expect, expect_equal

STREAMS: Final = 4
RUNS, WAITS = 1, 2
"""Handles of a stream."""
UNAVAILABLE: Final = (grpc.StatusCode.UNAVAILABLE,)


@check("DRN-06", variant="queued", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "DRN-06", "ABO-05", "INF-08"))
async def those_who_wait_can_be_aborted(ctx: Context) -> None:
    """Requests that wait for a slot, within the grace of a drain."""
    grace = 4 * ctx.bounds.reaction
    async with saturated(ctx) as running:
        waiting = await all_queued(ctx, running, ctx.long_request)
        await begun(ctx, 2 * grace, grace=grace)
        await ctx.client.load()
        await ctx.client.abort([stream.request.request_id for stream in waiting])
        await end_soon(ctx, waiting, "an abort during a drain does not reach the queue")


@check("DRN-07", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "DRN-01"))
async def the_queue_is_not_lost(ctx: Context) -> None:
    """Requests wait for a slot when the drain begins; then the slots get free.

    One of them waits on a stream, another request of which runs on.
    """
    async with _running_on_a_stream(ctx) as stream, saturated(ctx, _slots_left(ctx, stream)) as running:
        waiting = await all_queued(ctx, running, lambda: ctx.request(max_tokens=STREAMS))
        if stream:
            stream.submit(WAITS, ctx.request(max_tokens=STREAMS))
            await stream.until(lambda: stream.handle(WAITS).is_answered)
        # There may have been no room for it.
        has_room = stream and not stream.handle(WAITS).status
        await begun(ctx)
        await ctx.client.abort([each.request.request_id for each in running])
        await asyncio.gather(*(each.end() for each in waiting))
        if stream and has_room:
            await _is_not_lost_on(stream)
    for each in waiting:
        exchange = each.exchange
        if exchange.is_ok:
            ends = {choice.reason_name for choice in each.choices.values()}
            expect_equal(ends, {"LENGTH"}, "a queued request was cut short by a drain")
            continue
        require_refusal(exchange, UNAVAILABLE, reason=pb.ERROR_REASON_DRAINING)
        is_retryable = exchange.detail and exchange.detail.retryable
        expect(is_retryable, "a request that is handed back is not called retryable")


@check("INF-13", variant="draining", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "INF-13/waiting", "DRN-07"))
async def who_is_handed_back_has_ended(ctx: Context) -> None:
    """Requests wait for a slot when the drain begins: served or handed back, they count."""
    idle = await all_counted(ctx)
    async with saturated(ctx) as running:
        waiting = await all_queued(ctx, running, lambda: ctx.request(max_tokens=STREAMS))
        await begun(ctx)
        await ctx.client.abort([each.request.request_id for each in running])
        await asyncio.gather(*(each.end() for each in waiting))
    if finished := (await all_counted(ctx)).requests_finished:
        ended, least = finished - idle.requests_finished, len(running) + len(waiting)
        message = "Load.requests_finished leaves out who waited when a drain began"
        expect(ended >= least, message, expected=f"at least {least}", seen=ended)


@asynccontextmanager
async def _running_on_a_stream(ctx: Context) -> AsyncIterator[Multiplexed | None]:
    """A stream on which one request runs, or has run where that left no slot; None without streams."""
    if not ctx.capabilities.multiplexed:
        yield None
        return
    async with open_stream(ctx) as stream:
        stream.submit(RUNS, ctx.long_request() if slots_of(ctx.config) > 1 else ctx.request())
        await stream.until(lambda: bool(stream.handle(RUNS).tokens))
        if slots_of(ctx.config) == 1:
            await stream.until_ended(RUNS)
        yield stream


def _slots_left(ctx: Context, stream: Multiplexed | None) -> int:
    return max(slots_of(ctx.config) - bool(stream), 1)


async def _is_not_lost_on(stream: Multiplexed) -> None:
    """What waited is served or handed back, and the stream goes on until what runs has ended too."""
    handle, detail = stream.handle(WAITS), pb.ErrorDetail()
    await stream.until_ended(WAITS)
    if handle.status is None:
        ends = {reason_name(output.finish_reason) for output in handle.terminals}
        expect_equal(ends, {"LENGTH"}, "a queued handle was cut short by a drain")
    else:
        any(entry.Unpack(detail) for entry in handle.status.details)
        is_handed_back = detail.reason == pb.ERROR_REASON_DRAINING and detail.retryable
        expect(is_handed_back, "a queued handle is lost in a drain", seen=handle.status)
    stream.send(abort=(RUNS,))
    await stream.until_ended(RUNS)
