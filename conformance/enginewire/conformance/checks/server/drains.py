"""Begins drains and waits for their ends, with requests in flight. Knows no requirement."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import OUTPUT_TOKENS
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.wire.client import Call, Client
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import Violation, expect

DRAIN: Final = "EngineService.Drain"
UNAVAILABLE: Final = (grpc.StatusCode.UNAVAILABLE,)
LARGE_PROMPT: Final = 4096
TOKENS: Final = 16
LOOKS: Final = 8
SOON_SECONDS: Final = 0.001
"""An engine has its next step, and the prompt is not computed yet."""
MANY: Final = 64
"""Choices that are more than the slots of a small engine."""
FINAL: Final = (pb.DRAIN_STATE_DRAINED, pb.DRAIN_STATE_TIMED_OUT)


async def in_flight(ctx: Context, count: int, *, is_long: bool = False) -> list[Stream]:
    """Streams that have begun, every other one multiplexed; the long ones need not be read to their ends."""
    requests = ctx.unlike(ctx.long_request if is_long else ctx.lasting_request, count)
    streams = [ctx.start(each, is_multiplexed=number % 2 == 1) for number, each in enumerate(requests)]
    await asyncio.gather(*(stream.first_token() for stream in streams))
    return streams


async def still_computed(ctx: Context) -> list[Stream]:
    """A request whose prompt takes several steps, if it was seen to run."""
    large = ctx.prompt(min(ctx.longest_prompt(OUTPUT_TOKENS), LARGE_PROMPT), salt=ctx.fresh_salt())
    return await _seen_to_run(ctx, ctx.request(token_ids=large))


async def beyond_the_slots(ctx: Context) -> list[Stream]:
    """A request of which one choice waits, if others of it were seen to run."""
    count = max(ctx.choices(min(slots_of(ctx.config) + 1, MANY)), 1)
    return await _seen_to_run(ctx, ctx.request(n=count, max_tokens=ctx.tokens(TOKENS)))


async def _seen_to_run(ctx: Context, request: pb.GenerateRequest) -> list[Stream]:
    before = await ctx.client.load()
    stream = await ctx.start(request).accepted()
    for _ in range(LOOKS):
        load = await ctx.client.load()
        if load.running > before.running and load.waiting <= before.waiting:
            return [stream]
        await pause(SOON_SECONDS)
    return []


async def begun(
    ctx: Context, deadline: float | None = None, client: Client | None = None, *, grace: float = 0
) -> Call:
    """A drain, by default without grace, that has sent its first message, or ended."""
    seconds = 4 * ctx.bounds.answer if deadline is None else deadline
    request = pb.DrainRequest(deadline=_duration(seconds), admission_grace=_duration(grace))
    call = (client or ctx.client).call(DRAIN, request, timeout=seconds + 2 * ctx.bounds.answer)
    if await anext(call, None) is None:
        raise Violation("a drain sends nothing", expected="its state", seen=call.exchange.status)
    return call


def first_of(drain: Call) -> pb.DrainResponse:
    """Its first message."""
    return cast(pb.DrainResponse, drain.exchange.messages[0])


async def final_of(drain: Call, within: float | None = None) -> pb.DrainResponse:
    """The last message of a drain, which has to be final and to be followed by OK."""
    try:
        async with asyncio.timeout(within):
            exchange = await drain.finish()
    except TimeoutError:
        raise Violation(
            "a drain goes on after its deadline", expected=f"an end within {within:.1f} s"
        ) from None
    expect(exchange.is_ok, "a drain failed", expected="OK", seen=exchange.status)
    last = cast(pb.DrainResponse, exchange.messages[-1])
    expect(last.state in FINAL, "a drain ends without a final state", seen=state_name(last))
    return last


def state_name(response: pb.DrainResponse) -> str:
    """Its name."""
    return pb.DrainState.Name(response.state)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration
