"""CLN: releasing everything, and ERR-17 without it. What a Drain does first is not judged here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.conformance.checks.server.drains import DRAIN, begun
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check, negative
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import LEFT_OUT, Context, require_refusal
from enginewire.conformance.session.saturation import all_queued, saturated
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.session.watching import until
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.loads import describe_load
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stopwatch import Stopwatch
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

CLEANUP: Final = "EngineService.Cleanup"
TIMES: Final = 3
STREAMS: Final = 3
PAST: Final = 1.1
LOOKS: Final = 32
"""Refusals behind a Cleanup on its own connection: it has begun by the last of them."""


@check("CLN-01", phase=Phase.DESTRUCTIVE)
async def may_be_repeated(ctx: Context) -> None:
    """Three times."""
    await _drain(ctx)
    clean = [(await _cleaned(ctx)).already_clean for _ in range(TIMES)]
    expect_equal(clean, [False, *[True] * (TIMES - 1)], "already_clean is wrong")


@check("CLN-01", variant="together", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "CLN-01", "CLN-05"))
async def may_be_asked_for_by_two(ctx: Context) -> None:
    """Two at the same time, with a stream in flight for which they wait: one of them is the second call.

    It ends like the first one, not before there is anything clean.
    """
    stream = await ctx.start(ctx.lasting_request()).first_token()
    reading, patient = asyncio.ensure_future(stream.end()), await _patient(ctx)
    later = await ctx.client.ask(CLEANUP, pb.CleanupRequest(), timeout=ctx.bounds.check)
    load = await ctx.client.load()
    first, _ = await asyncio.gather(patient, reading)
    seen = sorted([(await _cleaned(ctx, exchange)).already_clean for exchange in (first, later)])
    expect_equal(seen, [False, True], "already_clean is wrong where two ask at the same time")
    is_over = load.state == pb.ENGINE_STATE_STOPPED and not (load.running or load.waiting)
    message = "a Cleanup ends while another one is under way"
    expect(is_over, message, expected="STOPPED, nothing in flight", seen=describe_load(load))


@check("CLN-02", phase=Phase.DESTRUCTIVE, needs=SHAPE)
async def streams_end_aloud(ctx: Context) -> None:
    """Several in flight, during a drain."""
    streams = [ctx.start(request) for request in ctx.unlike(ctx.long_request, STREAMS)]
    await asyncio.gather(*(stream.first_token() for stream in streams))
    await anext(ctx.client.call("EngineService.Drain", pb.DrainRequest()), None)
    reading = asyncio.gather(*(stream.end() for stream in streams))
    await _cleaned(ctx)
    try:
        async with asyncio.timeout(ctx.bounds.answer):
            await reading
    except TimeoutError:
        raise Violation("a stream goes on in silence after a Cleanup", expected="its end") from None
    for stream in streams:
        asked = max(1, stream.request.request.sampling_options.n)
        is_aloud = len(stream.terminals) >= asked or not stream.exchange.is_ok
        expect(is_aloud, "a stream ended with OK and no terminal output during a Cleanup")


@check("CLN-03", phase=Phase.DESTRUCTIVE)
async def serves_no_more(ctx: Context) -> None:
    """A request like one that was served before, by a call and over a stream that is open."""
    await ctx.generate(ctx.request())
    async with AsyncExitStack() as open_ones:
        stream = (
            await open_ones.enter_async_context(open_stream(ctx)) if ctx.capabilities.multiplexed else None
        )
        if stream:
            stream.submit(1, ctx.request())
            await stream.until_ended(1)
        await _drain(ctx)
        await _cleaned(ctx)
        exchange = await ctx.refused(ctx.request())
        require_refusal(exchange, (grpc.StatusCode.UNAVAILABLE,), reason=pb.ERROR_REASON_ENGINE_DEAD)
        if stream:
            await _serves_no_more_on(ctx, stream)


async def _serves_no_more_on(ctx: Context, stream: Multiplexed) -> None:
    """Unless the stream was ended."""
    stream.submit(2, ctx.request())
    handle = stream.handle(2)
    while not handle.is_answered and await stream.read() is not None:
        pass
    if handle.is_answered:
        status, detail = handle.status or pb.Status(), pb.ErrorDetail()
        any(entry.Unpack(detail) for entry in status.details)
        seen = (status.code, pb.ErrorReason.Name(detail.reason))
        expected = (grpc.StatusCode.UNAVAILABLE.value[0], "ERROR_REASON_ENGINE_DEAD")
        expect_equal(seen, expected, "a request over an open stream was not refused as one by a call")


@check("CLN-04", phase=Phase.LAUNCH)
async def may_come_first(ctx: Context) -> None:
    """As soon as the port is open. A start that fails cannot be brought about from here."""
    program = await ctx.spawn()
    client = await ctx.opened(program)
    request = pb.CleanupRequest(abort_in_flight=True)
    await _cleaned(ctx, await client.ask(CLEANUP, request, timeout=ctx.bounds.check))
    state = pb.EngineState.Name((await client.load()).state)
    expect_equal(state, "ENGINE_STATE_STOPPED", "a Cleanup during the start does not stop the engine")
    expect(program.exit_code is None, "the process did not survive a Cleanup", seen=program.exit_code)


@check("CLN-05", phase=Phase.DESTRUCTIVE, needs=SHAPE)
async def needs_no_drain(ctx: Context) -> None:
    """With a stream in flight."""
    stream = await ctx.start(ctx.long_request()).first_token()
    await _cleaned(ctx)
    await stream.end()


@check("CLN-06", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "CLN-02"))
async def holds_nothing(ctx: Context) -> None:
    """With a stream in flight, and prompts in the cache. Memory cannot be seen from here."""
    for salt in range(STREAMS):
        await ctx.generate(ctx.request(token_ids=ctx.prompt(64, salt=salt)))
    stream = await ctx.start(ctx.long_request()).first_token()
    await _drain(ctx)
    await _cleaned(ctx)
    await stream.end()
    load = await ctx.client.load()
    expect(not load.kv_blocks_used, "KV blocks are held after a Cleanup", seen=describe_load(load))
    cached = load.kv_blocks_cached
    expect(not cached, "the prefix cache outlives a Cleanup", expected="kv_blocks_cached 0", seen=cached)


@check("CLN-07", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "CLN-02", "CLN-03", "CLN-05"))
async def the_door_closes_at_once(ctx: Context) -> None:
    """While a patient Cleanup waits for a stream, which is served in full, and then a drain does."""
    stream = await ctx.start(ctx.lasting_request()).first_token()
    patient = await _patient(ctx)
    exchanges = [await ctx.refused(ctx.request())]
    await anext(ctx.client.call(DRAIN, pb.DrainRequest()), None)
    exchanges.append(await ctx.refused(ctx.request()))
    await stream.ok()
    await patient
    for exchange in exchanges:
        require_refusal(exchange, (grpc.StatusCode.UNAVAILABLE,), reason=pb.ERROR_REASON_ENGINE_DEAD)
    expect_equal(stream.choice.reason_name, "LENGTH", "a stream in flight is cut short by a patient Cleanup")


@check("CLN-07", variant="impatient", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "CLN-02", "CLN-05", "CLN-07"))
async def a_later_one_may_be_in_a_hurry(ctx: Context) -> None:
    """It ends the stream that a patient Cleanup waits for, and those that wait for a slot."""

    def lasting() -> pb.GenerateRequest:
        return ctx.lasting_request(ctx.bounds.reaction)

    stream = await ctx.start(lasting()).first_token()
    async with _waiting_beside(ctx, stream, lasting) as waiting:
        patient = await _patient(ctx)
        async with Stopwatch() as watch:
            request = pb.CleanupRequest(abort_in_flight=True)
            await _cleaned(ctx, await ctx.client.ask(CLEANUP, request, timeout=ctx.bounds.check))
        await asyncio.gather(*(each.end() for each in (stream, *waiting)))
        await patient
    for each in (stream, *waiting):
        if each.exchange.is_ok and "LENGTH" in {choice.reason_name for choice in each.choices.values()}:
            if watch.seconds < ctx.bounds.reaction / 2:
                raise NotApplicable("the request ends before it can be aborted")
            message = "a Cleanup with abort_in_flight waits as the one before it does"
            raise Violation(message, expected="its end", seen="LENGTH")


@asynccontextmanager
async def _waiting_beside(
    ctx: Context, stream: Stream, make: Callable[[], pb.GenerateRequest]
) -> AsyncIterator[list[Stream]]:
    """Requests that wait because all slots are taken, one by a stream; none where nothing can wait."""
    async with AsyncExitStack() as full:
        waiting, slots = list[Stream](), slots_of(ctx.config)
        with suppress(NotApplicable):
            others = await full.enter_async_context(saturated(ctx, slots - 1)) if slots > 1 else []
            waiting += await all_queued(ctx, others or [stream], make) if slots else []
        yield waiting


@check("CLN-07", variant="draining", phase=Phase.DESTRUCTIVE, needs=(*SHAPE, "CLN-07"))
async def the_door_of_a_drain_closes_too(ctx: Context) -> None:
    """A patient Cleanup behind a drain that waits for the same stream: it is what newcomers are told of.

    In the grace of the drain, and after it.
    """
    stream = await ctx.start(ctx.long_request()).first_token()
    grace = ctx.bounds.reaction
    started, _ = time.monotonic(), await begun(ctx, grace=grace)
    cleanup = ctx.client.call(CLEANUP, pb.CleanupRequest(), timeout=ctx.bounds.check)
    cleaning = asyncio.ensure_future(cleanup.finish())
    # Nothing else tells when it has begun: the state is that of the drain.
    for _ in range(LOOKS):
        await pause()
        exchange = await ctx.refused(ctx.request(max_tokens=1))
        if exchange.detail and exchange.detail.reason == pb.ERROR_REASON_ENGINE_DEAD:
            break
    goes_on = not cleaning.done()
    await pause(max(started + PAST * grace - time.monotonic(), 0))
    later = await ctx.refused(ctx.request())
    await ctx.client.abort([stream.request.request_id])
    await cleaning
    await stream.end()
    if not goes_on:
        message = "a stream in flight is cut short by a patient Cleanup during a drain"
        expect_equal(stream.choice.reason_name, "LENGTH", message)
        raise NotApplicable("the longest request ends before anybody can be refused")
    for each in (exchange, later):
        require_refusal(each, (grpc.StatusCode.UNAVAILABLE,), reason=pb.ERROR_REASON_ENGINE_DEAD)


@check("CLN-07", variant="queued", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "CLN-07", "INF-08"))
async def those_who_wait_are_served(ctx: Context) -> None:
    """A patient Cleanup while requests wait for a slot: then the slots get free."""
    async with saturated(ctx) as running:
        waiting = await all_queued(ctx, running, lambda: ctx.request(max_tokens=STREAMS))
        patient = await _patient(ctx)
        await ctx.client.abort([stream.request.request_id for stream in running])
        await asyncio.gather(*(stream.ok() for stream in waiting))
        await patient
    for stream in waiting:
        ends = {choice.reason_name for choice in stream.choices.values()}
        expect_equal(ends, {"LENGTH"}, "a queued request is cut short by a patient Cleanup")


@negative("cleanup", phase=Phase.DESTRUCTIVE)
async def is_not_served(ctx: Context) -> None:
    """A patient one, then a good request."""
    require_refusal(await ctx.client.ask(CLEANUP, pb.CleanupRequest(), timeout=ctx.bounds.check), LEFT_OUT)
    await ctx.generate(ctx.request())


async def _patient(ctx: Context) -> asyncio.Future[Exchange]:
    """The answer of a Cleanup that waits for those in flight; it has begun, as the load tells."""
    cleanup = ctx.client.call(CLEANUP, pb.CleanupRequest(), timeout=ctx.bounds.check)
    answer = asyncio.ensure_future(cleanup.finish())
    await until(
        ctx, lambda load: load.state != pb.ENGINE_STATE_READY, "a Cleanup does not show in Load.state"
    )
    return answer


async def _cleaned(ctx: Context, exchange: Exchange | None = None) -> pb.CleanupResponse:
    """The answer of a Cleanup that does not wait for anyone."""
    request = pb.CleanupRequest(abort_in_flight=True)
    return cast(pb.CleanupResponse, (exchange or await ctx.client.ask(CLEANUP, request)).response())


async def _drain(ctx: Context) -> None:
    """Take the server out of service at once, as an orderly supervisor would."""
    await ctx.client.ask("EngineService.Drain", pb.DrainRequest(deadline=Duration()))
