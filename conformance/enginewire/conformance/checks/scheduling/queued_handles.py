"""MUX: requests of a stream that wait for a slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.scheduling.queueing import FULL, LOOKS
from enginewire.conformance.checks.streams.multiplexed import SHORT, ends_of, is_cut, open_stream
from enginewire.conformance.running.registry import WHOLE, Phase, check
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.saturation import kinds, saturated, waits
from enginewire.conformance.session.watching import NOTICED, left_the_queue
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

ANSWER: Final = 8
CUT: Final = frozenset({"CANCELLED", "ERROR"})
"""Ends of choices that have not ended by themselves."""


@check("MUX-07", variant="queued", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "MUX-07"))
async def waiting_handles_are_aborted(ctx: Context) -> None:
    """Handles whose requests wait for a slot, by their stream; nothing of them runs when slots are free."""
    async with saturated(ctx) as running, open_stream(ctx) as stream:
        numbers = await _all_wait(ctx, running, stream, ctx.long_request)
        stream.send(abort=numbers)
        await stream.until_ended(*numbers, within=ctx.bounds.reaction)
        for number in _served(stream):
            message = "a handle that was aborted in the queue has another end"
            expect_equal(
                ends_of(stream.handle(number)), ["CANCELLED"] * stream.handle(number).choices, message
            )
    await ctx.idle()


@check("MUX-08", variant="queued", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "MUX-08", "CAN-01"))
async def half_closing_waits_for_the_queue(ctx: Context) -> None:
    """A stream is half-closed while all of its requests wait; then the slots get free."""
    async with saturated(ctx) as running, open_stream(ctx) as stream:
        await _all_wait(ctx, running, stream, lambda: ctx.request(max_tokens=ctx.tokens(ANSWER)))
        stream.half_close()
        # The server is to see it before a slot is free.
        for _ in range(LOOKS):
            await ctx.client.load()
        for other in running:
            other.cancel()
        exchange = await stream.finish()
    message = "a stream that was half-closed while its requests wait does not end with OK"
    expect(exchange.is_ok, message, expected="OK", seen=exchange.status)
    for number in _served(stream):
        handle, ends = stream.handle(number), ends_of(stream.handle(number))
        # Which end it is that each of them has by itself, others say.
        is_whole = len(ends) == handle.choices and not is_cut(handle)
        expect(is_whole, "half-closing cut a request that waits", seen=ends or handle.status)


@check("MUX-09", variant="queued", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "MUX-09", "CAN-01"))
async def an_ended_stream_frees_what_waits(ctx: Context) -> None:
    """Cancelled while all of its requests wait: none of them runs when the slots are free."""
    async with saturated(ctx) as running, open_stream(ctx) as stream:
        before = (await ctx.client.load()).waiting
        await _all_wait(ctx, running, stream, ctx.long_request)
        stream.call.cancel()
        await left_the_queue(ctx, len(running), before, "a request of a cancelled stream still waits")
    await ctx.idle()


@check(
    "MUX-12", variant="queued", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "MUX-12", "CAN-03/queued")
)
async def timeouts_end_what_waits(ctx: Context) -> None:
    """They pass while all slots are taken: what is late ends then, is never started, and its id is free."""
    async with saturated(ctx) as running, open_stream(ctx) as stream:
        request, *others = kinds(ctx, ctx.request)
        numbers = _submit(stream, [request, *others], timeout=SHORT)
        await stream.until(lambda: all(stream.handle(number).is_answered for number in numbers))
        # The server has counted from before that, and no slot has to be free for it.
        await _end_in_time(ctx, stream, numbers, len(running), time.monotonic() + SHORT)
        have_waited = await _were_running(ctx, running)
    if not have_waited:
        raise NotApplicable("a slot is free before a timeout passes")
    for number in _served(stream):
        handle, expected = stream.handle(number), grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        code = handle.status.code if handle.status else 0
        expect_equal(code, expected, "a request whose timeout passed in the queue has another end")
        message = "a request was started after its timeout had passed in the queue"
        expect(not handle.outputs, message, expected="no output", seen=f"{len(handle.outputs)} outputs")
    await ctx.idle()
    again = await ctx.start(request).end()
    message = "the id of a request whose timeout passed in the queue is not free"
    expect(again.exchange.is_ok, message, expected="OK", seen=again.exchange.status)


async def _end_in_time(
    ctx: Context, stream: Multiplexed, numbers: tuple[int, ...], slots: int, due: float
) -> None:
    """Read these handles to their end. A Violation when it is long due, and comes no sooner than a slot."""
    ending = asyncio.ensure_future(stream.until_ended(*numbers, within=2 * SHORT + ctx.bounds.reaction))
    finished = (await ctx.client.load()).requests_finished
    taken_until = due
    while not ending.done():
        looked_at, load = time.monotonic(), await ctx.client.load()
        if load.running < slots or load.requests_finished != finished:
            break
        taken_until = looked_at
        await pause()
    is_late = not ending.done() and taken_until - due > NOTICED * ctx.bounds.reaction
    await ending
    message = "a request whose timeout passed in the queue has no end while all slots are taken"
    expect(not is_late, message, expected=f"after {SHORT} s", seen=f"after {taken_until - due + SHORT:.1f} s")


async def _were_running(ctx: Context, running: list[Stream]) -> bool:
    """Abort what fills the slots; True when all of it was live, as it had been from the beginning."""
    load = await ctx.client.load()
    results = await ctx.client.abort([stream.request.request_id for stream in running])
    are_live = all(result.outcome == pb.ABORT_OUTCOME_ABORTED for result in results)
    return are_live and load.running >= len(running)


async def _all_wait(
    ctx: Context, running: list[Stream], stream: Multiplexed, make: Callable[[], pb.GenerateRequest]
) -> tuple[int, ...]:
    """Submit requests of several kinds that wait together; the numbers of their handles."""
    before = (await ctx.client.load()).waiting
    numbers = _submit(stream, kinds(ctx, make))
    await waits(ctx, len(running), before + 1)
    return numbers


def _submit(
    stream: Multiplexed, requests: Sequence[pb.GenerateRequest], timeout: float | None = None
) -> tuple[int, ...]:
    """All in one frame: when one of them waits, all are there."""
    numbers = tuple(range(1, len(requests) + 1))
    submits = [
        stream.submitted(number, each, timeout) for number, each in zip(numbers, requests, strict=True)
    ]
    stream.send(*submits)
    return numbers


def _served(stream: Multiplexed) -> list[int]:
    """The handles that found room in the queue; NotApplicable where none did."""
    busy, found = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], []
    for number in stream.uses:
        handle = stream.handle(number)
        if handle.accepted or (handle.status or pb.Status()).code != busy:
            found.append(number)
    if not found:
        raise NotApplicable("a request that has to wait is refused here")
    return found
