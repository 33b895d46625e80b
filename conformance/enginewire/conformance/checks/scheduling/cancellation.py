"""CAN: whatever takes the caller away frees what its request held."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import OUTPUT_TOKENS
from enginewire.conformance.session.saturation import all_queued, queued, saturated
from enginewire.conformance.session.watching import (
    freed,
    left_the_queue,
    still_running,
    until,
)
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.loads import is_idle
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, expect

KEEPALIVE_SECONDS: Final = 15.0
"""The contract's default: a ping after 10 s of silence, and 5 s for its answer."""

PINGS: Final = 5
"""The third may be a strike too many."""
SHORTEST_INTERVAL_MS: Final = 1000
"""Of pings that our own library sends."""
LONGEST_INTERVAL_MS: Final = 2000

SOON_SECONDS: Final = 2.0
"""Servers that ping earlier may have noticed by then."""

VISIBLE: Final = 4
"""A request's deadline leaves so many times the time in which another one was seen to run, or to wait."""

LARGE_PROMPT: Final = 4096
PARTS: Final = (1.0, 0.75, 0.5)
"""Of the window, that prompts fill; the last leaves room for an answer that outlasts the bounds."""
STREAMS: Final = 3
MOMENTS: Final = (0.0, 0.4, 0.8, 1.2)
"""Of the time that the smallest of them takes."""

NEEDS: Final = (*SHAPE, "ABO-08")
"""A server that loses blocks is never idle again."""


@check("CAN-01", phase=Phase.LOAD, alone=True, needs=NEEDS)
async def a_cancelled_stream_is_freed(ctx: Context) -> None:
    """After its first token."""
    stream = await ctx.start(ctx.long_request()).first_token()
    await still_running(ctx, stream)
    stream.cancel()
    await freed(ctx, [stream.request])


@check("CAN-02", phase=Phase.LOAD, alone=True, needs=(*NEEDS, "CAN-01"))
async def a_cancelled_prefill_is_freed(ctx: Context) -> None:
    """Large prompts: one until it is computed, then several at once, cancelled at moments until then.

    A prompt that fits a step is never half computed: the largest may not fit, or others beside it. A small
    one leaves room for more tokens: where a first token takes long, it outlasts the bounds.
    """
    computed = await _computed(ctx)
    for moment in MOMENTS:
        streams = [ctx.start(request) for request in _of_all_sizes(ctx)]
        # Who has no room for all of them may refuse some.
        await asyncio.gather(*(stream.call.accepted() for stream in streams))
        await asyncio.sleep(computed * moment)
        for stream in streams:
            stream.cancel()
        await freed(ctx, [stream.request for stream in streams])


@check("CAN-02", variant="queued", phase=Phase.LOAD, alone=True, needs=(*NEEDS, "INF-08", "CAN-01"))
async def cancelled_waiters_are_freed(ctx: Context) -> None:
    """Requests of several kinds while all slots are taken; none of them runs when these are free."""
    async with saturated(ctx) as running:
        before = (await ctx.client.load()).waiting
        waiting = await all_queued(ctx, running, ctx.long_request)
        for stream in waiting:
            stream.cancel()
        await left_the_queue(ctx, len(running), before, "a cancelled request still waits")
    await freed(ctx, [stream.request for stream in waiting])


@check("CAN-03", phase=Phase.LOAD, alone=True, needs=(*NEEDS, "CAN-01"))
async def a_late_stream_is_freed(ctx: Context) -> None:
    """The caller is out of reach when the deadline passes: the server has to notice by itself."""
    proxy, client = await ctx.proxy()
    begun = time.monotonic()
    before = await ctx.start(ctx.long_request(), client=client).first_token()
    await still_running(ctx, before)
    timeout = max(ctx.bounds.reaction / 4, VISIBLE * (time.monotonic() - begun))
    before.cancel()
    stream = await ctx.start(ctx.long_request(), client=client, timeout=timeout).first_token()
    proxy.black_hole()
    await still_running(ctx, stream)
    await stream.end()
    await freed(ctx, [before.request, stream.request])


@check(
    "CAN-03",
    variant="queued",
    phase=Phase.LOAD,
    alone=True,
    needs=(*NEEDS, "ABO-05", "INF-08", "CAN-01", "CAN-03"),
)
async def late_waiters_are_never_started(ctx: Context) -> None:
    """The deadlines of several kinds of requests pass while they wait, and then every slot gets free."""
    proxy, client = await ctx.proxy()
    async with saturated(ctx) as running:
        first, seen_after = await _queued(ctx, running)
        timeout = max(ctx.bounds.reaction / 2, VISIBLE * seen_after)
        waiting = await all_queued(ctx, running, ctx.long_request, client=client, timeout=timeout)
        proxy.black_hole()
        await asyncio.gather(*(stream.end() for stream in waiting))
        if (await ctx.client.load()).running < len(running):
            raise NotApplicable("the slots are free again before the deadline of a request that waits")
        await ctx.client.abort([stream.request.request_id for stream in (first, *running)])
        await freed(ctx, [stream.request for stream in waiting])


@check(
    "CAN-03",
    variant="prefill",
    gate="multiplexed",
    phase=Phase.LOAD,
    alone=True,
    needs=(*NEEDS, "CAN-02", "CAN-03", "MUX-12"),
)
async def a_late_prefill_is_freed(ctx: Context) -> None:
    """Large prompts whose timeouts pass at moments until they are computed, and their caller stays."""
    computed = await _computed(ctx)
    requests = [(moment, _large_request(ctx, part)) for moment in MOMENTS[1:] for part in PARTS]
    async with open_stream(ctx) as stream:
        for number, (moment, request) in enumerate(requests):
            stream.submit(number, request, timeout=computed * moment)
        await stream.until_ended(*range(len(requests)))
        await freed(ctx, [request for _, request in requests])


@check("CAN-04", phase=Phase.LOAD, alone=True, needs=(*NEEDS, "CAN-01", "CON-01"))
async def a_reset_connection_is_freed(ctx: Context) -> None:
    """With several streams on it."""
    proxy, client = await ctx.proxy()
    streams = [ctx.start(request, client=client) for request in ctx.unlike(ctx.long_request, STREAMS)]
    await asyncio.gather(*(stream.first_token() for stream in streams))
    await still_running(ctx, streams[0])
    proxy.reset()
    await freed(ctx, [stream.request for stream in streams])


@check("CAN-05", phase=Phase.LOAD, alone=True, needs=(*NEEDS, "CAN-04"))
async def a_vanished_peer_is_noticed(ctx: Context) -> None:
    """Bytes get lost in both directions, and nobody says so."""
    proxy, client = await ctx.proxy()
    before = await ctx.client.load()
    stream = await ctx.start(_unnoticed_request(ctx), client=client).first_token()
    proxy.black_hole()
    await still_running(ctx, stream)
    await freed(ctx, [stream.request], within=KEEPALIVE_SECONDS * ctx.bounds.scale + ctx.bounds.reaction)
    generated = (await until(ctx, is_idle, "")).tokens_generated - before.tokens_generated
    if generated >= stream.request.request.stop_conditions.max_tokens:
        raise NotApplicable("the longest request ends before keepalive can notice anything")


@check("CAN-06", in_company=False)
async def advertised_pings_are_borne(ctx: Context) -> None:
    """As often as the server says, on a stream that is silent for longer than a few strikes take."""
    if not ctx.limits.min_keepalive_interval_ms:
        raise NotApplicable("Limits.min_keepalive_interval_ms is absent")
    interval = max(ctx.limits.min_keepalive_interval_ms, SHORTEST_INTERVAL_MS)
    if interval > LONGEST_INTERVAL_MS:
        raise NotApplicable(f"{PINGS} pings, {interval} ms apart, take longer than the kit waits")
    client = ctx.connect(None, ("grpc.keepalive_time_ms", interval), ("grpc.http2.max_pings_without_data", 0))
    ready = health_types.request(health_types.READINESS)
    watch = client.call(health_types.WATCH, ready, timeout=ctx.bounds.check)
    if await anext(watch, None) is None:
        raise NotApplicable("a watch of the health, which would be silent, is not served")
    reading = asyncio.ensure_future(anext(watch, None))
    await asyncio.wait([reading], timeout=PINGS * interval / 1000)
    code, seen = watch.exchange.code, watch.exchange.status
    watch.cancel()
    await stop([reading])
    message = f"a silent stream with a ping every {interval} ms, as advertised, is cut off"
    expect(code is not grpc.StatusCode.UNAVAILABLE, message, expected="open", seen=seen)


async def _computed(ctx: Context) -> float:
    """In how many seconds the prompt of the smallest large request is."""
    stream = await ctx.start(_large_request(ctx, PARTS[-1])).accepted()
    began = time.monotonic()
    await stream.first_token()
    computed = time.monotonic() - began
    stream.cancel()
    await freed(ctx, [stream.request])
    return computed


def _large_request(ctx: Context, part: float) -> pb.GenerateRequest:
    """With a prompt that is in no cache, and fills that part of the window."""
    length = min(int(ctx.context_length() * part), ctx.longest_prompt(), LARGE_PROMPT) - OUTPUT_TOKENS
    return ctx.long_request(token_ids=ctx.prompt(length, salt=ctx.fresh_salt()))


def _of_all_sizes(ctx: Context) -> list[pb.GenerateRequest]:
    return [*(_large_request(ctx, part) for part in PARTS), ctx.long_request()]


def _unnoticed_request(ctx: Context) -> pb.GenerateRequest:
    """The longest one; where even that ends before the default would notice, one that ends sooner does."""
    longest = ctx.long_request()
    needed = ctx.bounds.tokens_in(KEEPALIVE_SECONDS)
    is_long = longest.request.stop_conditions.max_tokens >= needed
    return longest if is_long else ctx.lasting_request(SOON_SECONDS)


async def _queued(ctx: Context, running: list[Stream]) -> tuple[Stream, float]:
    """A request that waits, and after how many seconds it was seen to: a busy engine may take its time."""
    started = time.monotonic()
    return await queued(ctx, running), time.monotonic() - started
