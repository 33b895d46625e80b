"""LIF: a server as a process: start, signals, exit codes, what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.running.servers.processes import alive, can_look, descendants, end
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.session import Program
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Exchange, detail_of
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

NO_PORT: Final = "127.0.0.1:99999"
OVERTAKERS: Final = 5
"""So many calls in a row are answered while a request is held, not while its refusal is on its way."""


@check("LIF-01", phase=Phase.LAUNCH)
async def is_reachable_while_it_loads(ctx: Context) -> None:
    """Requests from the moment the port is open until one is served, by calls and over streams."""
    program = await ctx.spawn()
    client = await ctx.opened(program)
    refused = 0
    while not (exchange := await _answered(ctx, client)).is_ok:
        _is_not_started(program, exchange)
        if ctx.capabilities.multiplexed:
            await _is_not_started_on_a_stream(ctx, client)
        refused += 1
        await pause()
    if not refused:
        raise NotApplicable("the server was ready before it could be seen to load")


@check("LIF-02", phase=Phase.LAUNCH, needs=WHOLE)
async def sigterm_drains(ctx: Context) -> None:
    """With a stream in flight, and somebody who watches the health."""
    program, client = await _ready(ctx)
    asked = health_types.request(health_types.READINESS)
    watch = client.call(health_types.WATCH, asked, timeout=ctx.bounds.check)
    await anext(watch, None)
    stream = await ctx.start(ctx.lasting_request(), client=client).first_token()
    program.signal(signal.SIGTERM)
    await stream.end()
    wanted = stream.request.request.stop_conditions.max_tokens
    seen = f"{len(stream.tokens)} tokens, {stream.choice.reason_name}, {stream.exchange.status}"
    is_whole = len(stream.tokens) == wanted and stream.choice.reason_name == "LENGTH"
    message = "a stream in flight did not finish after SIGTERM"
    expect(is_whole and stream.exchange.is_ok, message, expected=f"{wanted} tokens, LENGTH, OK", seen=seen)
    code = await _exit_code(ctx, program, "SIGTERM")
    expect_equal(code, 0, "SIGTERM ends the process with another exit code")
    watch.cancel()


@check("LIF-02", variant="cleaned-up", gate="cleanup", phase=Phase.LAUNCH, needs=("LIF-02", "CLN-01"))
async def sigterm_ends_what_was_cleaned_up(ctx: Context) -> None:
    """There is nothing left to drain or to release."""
    program, client = await _ready(ctx)
    await ctx.start(ctx.request(), client=client).ok()
    (await client.ask("EngineService.Cleanup", pb.CleanupRequest(), timeout=ctx.bounds.check)).response()
    program.signal(signal.SIGTERM)
    code = await _exit_code(ctx, program, "SIGTERM after a Cleanup")
    expect_equal(code, 0, "SIGTERM after a Cleanup ends the process with another exit code")


@check("LIF-03", phase=Phase.LAUNCH, needs=(*SHAPE, "LIF-02"))
async def a_second_signal_hurries(ctx: Context) -> None:
    """SIGINT during the drain that SIGTERM began, with a long stream in flight."""
    program, client = await _ready(ctx)
    stream = await ctx.start(ctx.long_request(), client=client).first_token()
    program.signal(signal.SIGTERM)
    reading = asyncio.ensure_future(stream.end())
    await _draining(ctx, client, stream)
    program.signal(signal.SIGINT)
    await asyncio.wait([reading], timeout=ctx.bounds.reaction)
    if not reading.done():
        stream.cancel()
        await reading
        raise Violation("a second signal does not cut the drain short", seen="the stream goes on")
    if stream.choice.reason_name == "LENGTH":
        raise NotApplicable("the longest request ends before a second signal can be sent")
    is_aloud = bool(stream.choice.terminal) or not stream.exchange.is_ok
    expect(is_aloud, "what a second signal cut short ended in silence")
    await _exit_code(ctx, program, "a second signal")


@check("LIF-04", phase=Phase.LAUNCH)
async def sigterm_ends_a_start(ctx: Context) -> None:
    """At once, and as soon as the port is open."""
    early, late = await ctx.spawn(), await ctx.spawn()
    early.signal(signal.SIGTERM)
    await _exit_code(ctx, early, "SIGTERM at once")
    await ctx.opened(late)
    late.signal(signal.SIGTERM)
    await _exit_code(ctx, late, "SIGTERM while it starts")


@check("LIF-05", phase=Phase.LAUNCH)
async def mistakes_end_it(ctx: Context) -> None:
    """An address that no server can have, which is the only option the kit knows."""
    with tempfile.NamedTemporaryFile() as file:
        named, target = Path(file.name).name, f"unix:{file.name}/in-a-file.sock"
        if ctx.session.connection.is_tcp:
            named, target = NO_PORT.rpartition(":")[2], NO_PORT
        program = await ctx.spawn(target)
        code = await _exit_code(ctx, program, f"the address {target}", 4 * ctx.bounds.answer)
    expect(code, "a configuration that cannot work ends the process with 0", expected="another", seen=code)
    printed = program.output()
    expect(named in printed, "no message names the mistake", expected=named, seen=printed[-200:])


@check("LIF-06", phase=Phase.LAUNCH)
async def an_address_in_use_ends_it(ctx: Context) -> None:
    """A second server at the address of a first one, which goes on."""
    program, client = await _ready(ctx)
    second = await ctx.spawn(program.target)
    code = await _exit_code(ctx, second, "an address that is in use", 4 * ctx.bounds.answer)
    expect(code, "an address that is in use ends the process with 0", expected="another", seen=code)
    await client.info()
    await ctx.connect(ctx.session.connection.at(program.target)).info()


@check("LIF-07", phase=Phase.LAUNCH)
async def nothing_survives_it(ctx: Context) -> None:
    """Its descendants, by the process table."""
    if not can_look():
        raise NotApplicable("there is no process table to read")
    program, _ = await _ready(ctx)
    started = descendants(program.group)
    program.signal(signal.SIGTERM)
    await _exit_code(ctx, program, "SIGTERM")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ctx.bounds.reaction):
            while alive(started, program.group):
                await pause()
    left = alive(started, program.group)
    end(left)
    expect(not left, "processes outlive the server that started them", expected="none", seen=len(left))


@check("LIF-08", phase=Phase.LAUNCH)
async def a_stale_socket_is_replaced(ctx: Context) -> None:
    """The socket of a server that was killed."""
    program, _ = await _ready(ctx)
    if not program.target.startswith("unix:"):
        raise NotApplicable("the command of --launch has no {socket}")
    program.signal(signal.SIGKILL)
    await program.ended(ctx.bounds.answer)
    again = await ctx.spawn(program.target)
    client = await ctx.opened(again)
    expect((await client.health("")) >= 0, "a server at a stale socket does not answer")


async def _ready(ctx: Context) -> tuple[Program, Client]:
    """A program that serves, and a client of it."""
    program = await ctx.spawn()
    await program.ready(ctx.bounds.check)
    return program, ctx.connect(ctx.session.connection.at(program.target))


async def _draining(ctx: Context, client: Client, stream: Stream) -> None:
    """Wait until the first signal shows in the load, or the stream ended by itself."""
    async with asyncio.timeout(ctx.bounds.reaction):
        while stream.exchange.code is None:
            if (await client.load()).state == pb.ENGINE_STATE_DRAINING:
                return
            await pause()


async def _exit_code(ctx: Context, program: Program, cause: str, within: float = 0) -> int:
    bound = within or 2 * ctx.bounds.answer
    try:
        return await program.ended(bound)
    except TimeoutError:
        raise Violation(f"{cause} does not end the process", expected=f"within {bound:.0f} s") from None


async def _answered(ctx: Context, client: Client) -> Exchange:
    """A request read to its status; a Violation when it is held while the engine still starts."""
    stream = ctx.start(ctx.request(), client=client)
    reading = asyncio.ensure_future(stream.end())
    overtakers = 0
    while not reading.done():
        # Sent later on the same connection, and answered: then this machine is not what holds the request.
        overtakers += (await client.load()).state == pb.ENGINE_STATE_STARTING
        held = time.monotonic() - stream.exchange.started_at
        if overtakers >= OVERTAKERS and held > ctx.bounds.reaction / 10:
            reading.cancel()
            raise Violation(
                "a request is held while the engine starts", expected="a refusal", seen="no answer"
            )
        await pause()
    return stream.exchange


async def _is_not_started_on_a_stream(ctx: Context, client: Client) -> None:
    """A Violation when the stream is refused instead of the request, which may be served by now."""
    async with open_stream(ctx, client) as stream:
        stream.submit(1, ctx.request())
        handle = stream.handle(1)
        while not handle.is_answered and await stream.read() is not None:
            pass
        message = "a stream is refused during the start, and not the request on it"
        is_refused = not handle.is_answered and stream.exchange.detail is not None
        expect(not is_refused, message, expected="a status of the handle", seen=stream.exchange.status)
        detail = detail_of(handle.status) if handle.status else None
        reason = pb.ErrorReason.Name(detail.reason) if detail else handle.status
        message = "a request on a stream is not refused during the start as it must be"
        is_right = not handle.status or reason == "ERROR_REASON_NOT_STARTED"
        expect(is_right, message, expected="ERROR_REASON_NOT_STARTED", seen=reason)


def _is_not_started(program: Program, exchange: Exchange) -> None:
    """A Violation unless the request was refused because the server is still starting."""
    expect(program.exit_code is None, "the server ended while it loaded", seen=program.exit_code)
    seen = pb.ErrorReason.Name(exchange.detail.reason) if exchange.detail else exchange.status
    is_right = exchange.code is grpc.StatusCode.UNAVAILABLE and seen == "ERROR_REASON_NOT_STARTED"
    message = "a request during the start is not refused as it must be"
    expect(is_right, message, expected="UNAVAILABLE, ERROR_REASON_NOT_STARTED", seen=seen)
