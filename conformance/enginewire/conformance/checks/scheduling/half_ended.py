"""ABO, CAN, MUX: requests of which one choice has ended, while the other one goes on.

What ends a request ends what is left of it. Where the first choice ends is known beforehand: it goes on with
all of its tokens but one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import SHORT, ends_of, is_cut, open_stream
from enginewire.conformance.running.registry import WHOLE, CheckFunction, Phase, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.watching import freed
from enginewire.conformance.wire.multiplexed import Handle
from enginewire.conformance.wire.stream import Choice, Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

LASTING: Final = 2.0
"""Reaction bounds that the other choice goes on, if nothing ends it."""
VISIBLE: Final = 4
"""A timeout leaves so many times the time in which the first choice of another request was seen to end."""
BOTH: Final = (*WHOLE, "SEQ-01", "SEQ-02", "RES-04", "RES-06")


def check_half_ended(identifier: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register what holds also of a request of which one choice has ended."""
    return check(
        identifier,
        variant="half-ended",
        gate="multiple_choices",
        phase=Phase.LOAD,
        alone=True,
        needs=(*BOTH, identifier),
    )


@check_half_ended("ABO-01")
async def the_choice_that_is_left_ends_as_cancelled(ctx: Context) -> None:
    """An abort after the end of the other one."""
    stream = await _half_ended(ctx)
    (result,) = await ctx.client.abort([stream.request.request_id])
    await stream.ok()
    ends = [stream.choices.get(index, Choice(index)).reason_name for index in range(2)]
    if result.outcome == pb.ABORT_OUTCOME_FINISHED and ends[1] == "LENGTH":
        raise NotApplicable("the longest request ends before it can be aborted")
    message = "the choices of a request that was aborted after one of them have other ends"
    expect_equal(ends, ["LENGTH", "CANCELLED"], message)
    await freed(ctx, [stream.request])


@check_half_ended("CAN-01")
async def the_choice_that_is_left_is_freed(ctx: Context) -> None:
    """A call that is cancelled after the end of the other one."""
    stream = await _half_ended(ctx)
    if not (await ctx.client.load()).running:
        raise NotApplicable("the longest request ends before it can be cancelled")
    stream.cancel()
    await freed(ctx, [stream.request])


@check_half_ended("MUX-12")
async def the_choice_that_is_left_is_late(ctx: Context) -> None:
    """A timeout that passes after the end of the other one."""
    expected = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    async with open_stream(ctx) as stream:
        began = time.monotonic()
        stream.submit(1, _to_be_half_ended(ctx))
        await stream.until(lambda: _has_ended_one(stream.handle(1)))
        timeout = max(SHORT, VISIBLE * (time.monotonic() - began))
        stream.send(abort=(1,))
        await stream.until_ended(1)
        began = time.monotonic()
        stream.submit(2, _to_be_half_ended(ctx), timeout=timeout)
        await stream.until_ended(2)
        took, handle = time.monotonic() - began, stream.handle(2)
    if not is_cut(handle) and took < timeout + ctx.bounds.reaction / 2:
        raise NotApplicable("the longest request ends before a timeout can be seen to end it")
    if not handle.terminals:
        raise NotApplicable("no choice has ended before the timeout")
    seen = handle.status or ends_of(handle)
    message = "a request has another end after its timeout if one of its choices has ended before"
    expect(bool(handle.status and handle.status.code == expected), message, expected=expected, seen=seen)


async def _half_ended(ctx: Context) -> Stream:
    """One that was read until its first choice has ended."""
    stream = ctx.start(_to_be_half_ended(ctx))
    while not stream.terminals and await anext(stream.call, None) is not None:
        pass
    return stream


def _to_be_half_ended(ctx: Context) -> pb.GenerateRequest:
    """Two choices, of which the first one has one token left, and the other one all."""
    if ctx.choices(2) < 2 or not ctx.capabilities.resume:
        raise NotApplicable("no request has two choices of which one goes on")
    if ctx.config.HasField("max_num_seqs") and ctx.config.max_num_seqs < 2:
        raise NotApplicable("max_num_seqs is 1")
    request = ctx.lasting_request(LASTING * ctx.bounds.reaction, n=2)
    tokens = request.request.stop_conditions.max_tokens
    request.request.resume.choices.add(index=0, generated_token_ids=ctx.prompt(tokens - 1))
    request.request.resume.attempt = 1
    return request


def _has_ended_one(handle: Handle) -> bool:
    return bool(handle.terminals) or handle.has_ended
