"""What becomes of requests from which an engine takes the memory while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import WHOLE, CheckFunction, Phase, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.saturation import beyond_memory, short_of_memory
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

HOT: Final = 100.0
"""Tokens are about equally probable: random numbers alone say which of them come, whatever is rounded."""
LAST: Final = 4
"""The last part of an answer, of so many: who gave up its memory by then goes on with the same numbers."""
ALIKE: Final = 0.5
"""Of the tokens there; with other random numbers hardly any is the same."""


def check_where_memory_is_short(identifier: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register what holds also of a request that gives up its memory."""
    needs = (*WHOLE, identifier, "INF-07")
    return check(identifier, variant="preempted", phase=Phase.LOAD, alone=True, costly=True, needs=needs)


@check_where_memory_is_short("CON-02")
async def tokens_do_not_change_where_memory_is_short(ctx: Context) -> None:
    """Of all requests at once, of which one has to give up its memory, and of each of them alone."""
    can = ctx.capabilities
    rows: dict[str, Value] = {"logprobs": 0} if can.logprobs else {}
    wanted = [
        requests.change(each, **rows, **({"seed": seed, "temperature": HOT} if can.seed else {}))
        for seed, each in enumerate(beyond_memory(ctx))
    ]
    async with short_of_memory(ctx, wanted) as streams:
        pass
    for stream in streams:
        seen, tokens = len((await stream.ok()).tokens), stream.request.request.stop_conditions.max_tokens
        expect_equal(seen, tokens, "a request has not all its tokens where memory is short")
    if not can.seed:
        return
    # Memory is taken from the last, as a rule.
    last = ctx.times(len(wanted), wanted[0].request.stop_conditions.max_tokens)
    alone = [await ctx.generate(_again(ctx, request)) for request in wanted[-last:]]
    room = wanted[-last:][: len(wanted) // 2]
    beside = await asyncio.gather(*(ctx.generate(_again(ctx, request)) for request in room))
    if not all(map(_ends_alike, beside, alone)):
        raise NotApplicable("the same seeds draw other tokens in another batch")
    for calm, stream in zip(alone, streams[-last:], strict=True):
        message = "the same seeds draw other tokens where memory is short"
        expect(_ends_alike(stream, calm), message, expected=calm.tokens, seen=stream.tokens)


@check_where_memory_is_short("INF-13")
async def who_gave_up_memory_waits(ctx: Context) -> None:
    """All are counted: those that run, and the one that waits for memory."""
    async with short_of_memory(ctx, beyond_memory(ctx)) as streams:
        load = await ctx.client.load()
        live = sum(stream.choice.terminal is None for stream in streams)
        if live < len(streams):
            raise NotApplicable("a request has ended before its load can be seen")
    expect_equal(load.running + load.waiting, live, "a request without memory neither runs nor waits")


@check_where_memory_is_short("ABO-01")
async def who_gave_up_memory_can_be_aborted(ctx: Context) -> None:
    """All are aborted while one waits for memory, and nothing is left of it."""
    async with short_of_memory(ctx, beyond_memory(ctx)) as streams:
        results = await ctx.client.abort([stream.request.request_id for stream in streams])
    for stream, result in zip(streams, results, strict=True):
        reason = (await stream.ok()).choice.reason_name
        if result.outcome != pb.ABORT_OUTCOME_FINISHED:
            expect_equal(reason, "CANCELLED", "an abort passes over a request that gave up its memory")
    await ctx.idle()


def _ends_alike(one: Stream, other: Stream) -> bool:
    last = -max(len(other.tokens) // LAST, 1)
    same = [a == b for a, b in zip(one.tokens[last:], other.tokens[last:], strict=False)]
    return sum(same) >= ALIKE * len(same)


def _again(ctx: Context, request: pb.GenerateRequest) -> pb.GenerateRequest:
    """The same under another id."""
    return requests.change(request, request_id=ctx.request().request_id)
