"""HLT: what grpc.health.v1 says, and when."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import Phase, check
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.saturation import saturated
from enginewire.conformance.session.session import Program
from enginewire.conformance.wire.client import Call, Client
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.stopwatch import within
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

SERVICES: Final = (health_types.LIVENESS, health_types.READINESS)
OTHERS: Final = tuple(f"enginewire.v1.{name}Service" for name in ("Discovery", "Embedding", "Kv", "Admin"))
"""Whoever serves them says of each what it says of the first one."""
WATCHERS: Final = 3
"""Of the same service: who wakes one of them has not told the others."""
LOOKS: Final = 20
MANY: Final = 100

IMPATIENT: Final = tuple((f"grpc.{which}_reconnect_backoff_ms", 20) for which in ("initial", "min", "max"))
"""For connections to a port that will open any moment."""


@check("HLT-01", needs=("STR-01",), alone=True)
async def serving_means_serving(ctx: Context) -> None:
    """Asked for health, then at once for tokens."""
    if await ctx.client.health() != health_types.SERVING:
        raise NotApplicable("health is not SERVING, INF-12 says whether it should be")
    stream = await ctx.start(ctx.request()).end()
    message = "health is SERVING, but Generate does not work"
    expect(stream.exchange.is_ok and stream.tokens, message, expected="tokens", seen=stream.exchange.status)


@check("HLT-01", variant="start-up", phase=Phase.LAUNCH, gate="launch", needs=("HLT-01",))
async def serving_begins_with_serving(ctx: Context) -> None:
    """Asked from the first moment on: the first SERVING is followed by tokens."""
    program = await ctx.spawn()
    client = ctx.connect(ctx.session.connection.at(program.target), *IMPATIENT)
    await _serving(ctx, client, program)
    stream = await ctx.start(ctx.request(), client=client).end()
    message = "health is SERVING during start-up, but Generate does not work yet"
    expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)


@check("HLT-02", phase=Phase.LOAD, alone=True, needs=("HLT-03",))
async def answers_under_load(ctx: Context) -> None:
    """While every slot is taken."""
    asked, bound = health_types.request(health_types.READINESS), ctx.bounds.reaction
    async with saturated(ctx) as running:
        for _ in range(LOOKS):
            call = ctx.client.call(health_types.CHECK, asked, timeout=ctx.bounds.check)
            with suppress(TimeoutError):
                await within(bound, call.finish())
            message = "health does not answer promptly while the engine is saturated"
            expected = f"an answer within {bound:.1f} s"
            expect(call.exchange.is_ok, message, expected=expected, seen=call.exchange.status)
            if (await ctx.client.load()).running < len(running):
                return  # a fast engine has ended some of them


@check("HLT-03", alone=True)
async def states_have_names(ctx: Context) -> None:
    """Load.state, and health of the process and of the service."""
    for service in SERVICES:
        status = await ctx.client.health(service)
        known = status in (health_types.SERVING, health_types.NOT_SERVING)
        expect(known, f"health of {service!r} is no status", expected="SERVING or NOT_SERVING", seen=status)
    state = (await ctx.client.load()).state
    expect(state in pb.EngineState.values() and state, "Load.state names no state", seen=state)


@check("HLT-04", phase=Phase.DESTRUCTIVE, alone=True, needs=("HLT-03", "DRN-04"))
async def the_end_is_visible(ctx: Context) -> None:
    """After Drain."""
    await ctx.client.ask("EngineService.Drain", pb.DrainRequest(), timeout=ctx.bounds.answer)
    await _is(ctx, pb.ENGINE_STATE_DRAINING, "after Drain")


@check(
    "HLT-04",
    variant="cleaned-up",
    phase=Phase.DESTRUCTIVE,
    gate="cleanup",
    alone=True,
    needs=("HLT-03", "HLT-04"),
)
async def the_clean_end_is_visible(ctx: Context) -> None:
    """After a Drain, then after a Cleanup."""
    await ctx.client.ask("EngineService.Drain", pb.DrainRequest(), timeout=ctx.bounds.answer)
    await ctx.client.ask("EngineService.Cleanup", pb.CleanupRequest(), timeout=ctx.bounds.answer)
    await _is(ctx, pb.ENGINE_STATE_STOPPED, "after Cleanup")


@check("HLT-05", alone=True, needs=("HLT-03",))
async def asking_changes_nothing(ctx: Context) -> None:
    """Many times, with a look at the load in between."""
    before = await ctx.idle()
    for number in range(MANY):
        await ctx.client.health(SERVICES[number % len(SERVICES)])
        load = await ctx.client.load()
        for name in ("state", "running", "waiting", "kv_blocks_used", "kv_blocks_cached"):
            expected, seen = getattr(before, name), getattr(load, name)
            expect(seen == expected, f"a health check changed Load.{name}", expected=expected, seen=seen)
    # A server may probe its engine from time to time, but not for whoever asks.
    ended, asked = load.requests_finished - before.requests_finished, MANY // len(SERVICES)
    message = "health checks are requests that Load.requests_finished counts"
    expect(ended < asked / 2, message, expected=before.requests_finished, seen=load.requests_finished)


@check("HLT-07", alone=True)
async def watch_begins_with_now(ctx: Context) -> None:
    """A watch of a server that serves."""
    (await _watch(ctx)).cancel()


@check("HLT-07", variant="changes", phase=Phase.DESTRUCTIVE, alone=True, needs=("HLT-07", "HLT-04"))
async def watch_tells_changes(ctx: Context) -> None:
    """Several watches that are open while the server is drained, of one service and of the others."""
    watches = [await _watch(ctx, service) for service in [health_types.READINESS] * WATCHERS]
    watches += [await _watch(ctx, service) for service in await _others(ctx)]
    await ctx.client.ask("EngineService.Drain", pb.DrainRequest(), timeout=ctx.bounds.answer)
    for watch in watches:
        status = await _next(ctx, watch, "a message about the drain")
        expect_equal(status, "NOT_SERVING", "Watch does not tell a change")
        watch.cancel()


@check(
    "HLT-07",
    variant="liveness",
    gate="cleanup",
    phase=Phase.DESTRUCTIVE,
    alone=True,
    needs=("HLT-07", "HLT-04"),
)
async def watch_tells_the_end(ctx: Context) -> None:
    """Watches of the process that are open during a drain and a Cleanup: at last they say what Check says."""
    watches = [await _watch(ctx, health_types.LIVENESS) for _ in range(WATCHERS)]
    await ctx.client.ask("EngineService.Drain", pb.DrainRequest(), timeout=ctx.bounds.answer)
    # So that whoever looks from time to time has seen the one before the other.
    for _ in range(LOOKS):
        await pause()
    await ctx.client.ask("EngineService.Cleanup", pb.CleanupRequest(abort_in_flight=True))
    now = health_types.NAMES.get(await ctx.client.health(health_types.LIVENESS))
    if now == "SERVING":
        raise NotApplicable("the process is alive without its engine")
    for watch in watches:
        expect_equal(await _next(ctx, watch, "a message about the end"), now, "Watch does not tell a change")
        watch.cancel()


@check("HLT-08", alone=True)
async def other_names_are_unknown(ctx: Context) -> None:
    """A service that no contract has, asked for once and watched."""
    asked = health_types.request(health_types.NO_SERVICE)
    exchange = await ctx.client.ask(health_types.CHECK, asked)
    expected = grpc.StatusCode.NOT_FOUND
    message = "Check of a service that is not served has another status"
    expect(exchange.code is expected, message, expected=expected.name, seen=exchange.status)
    watch = ctx.client.call(health_types.WATCH, asked)
    status = await _next(ctx, watch, "its first message")
    expect_equal(
        status, "SERVICE_UNKNOWN", "Watch of a service that is not served begins with another status"
    )
    watch.cancel()


async def _is(ctx: Context, state: pb.EngineState.ValueType, when: str) -> None:
    load, health = await ctx.client.load(), await ctx.client.health()
    names = pb.EngineState.Name(state), pb.EngineState.Name(load.state)
    expect(load.state == state, f"Load.state {when}", expected=names[0], seen=names[1])
    expect_equal(health_types.NAMES[health], "NOT_SERVING", f"health {when}")
    if state == pb.ENGINE_STATE_STOPPED:
        seen = health_types.NAMES.get(await ctx.client.health(health_types.LIVENESS))
        expect_equal(seen, "NOT_SERVING", f"health of the process {when}")
    for name in OTHERS:
        exchange = await ctx.client.ask(health_types.CHECK, health_types.request(name))
        if exchange.is_ok:  # HLT-08 says what else there may be
            seen = health_types.NAMES.get(health_types.status_of(exchange.response()))
            expect_equal(seen, "NOT_SERVING", f"health of {name} {when}")
    # What is answered here is for HLT-08, which holds in every state.
    await ctx.client.ask(health_types.CHECK, health_types.request(health_types.NO_SERVICE))


async def _others(ctx: Context) -> list[str]:
    """Those of the other services that are served."""
    asked = {name: await ctx.client.ask(health_types.CHECK, health_types.request(name)) for name in OTHERS}
    return [name for name, exchange in asked.items() if exchange.is_ok]


async def _watch(ctx: Context, service: str = health_types.READINESS) -> Call:
    """A watch that began with what Check says."""
    now = health_types.NAMES.get(await ctx.client.health(service))
    watch = ctx.client.call(health_types.WATCH, health_types.request(service))
    expect_equal(await _next(ctx, watch, "its first message"), now, "Watch does not begin with now")
    return watch


async def _next(ctx: Context, watch: Call, what: str) -> str:
    """The next status of a watch, by name."""
    try:
        async with asyncio.timeout(ctx.bounds.reaction):
            message = await anext(watch, None)
    except TimeoutError:
        raise Violation(
            f"Watch did not send {what}", expected=f"within {ctx.bounds.reaction:.1f} s"
        ) from None
    expect(message is not None, f"Watch ended before {what}", seen=watch.exchange.status)
    assert message is not None
    return health_types.NAMES.get(health_types.status_of(message), "a status without a name")


async def _serving(ctx: Context, client: Client, program: Program) -> None:
    """Wait until health says so; a program that ends before is for LIF-05 to judge."""
    while True:
        exchange = await client.ask(health_types.CHECK, health_types.request(health_types.READINESS))
        if exchange.is_ok and health_types.status_of(exchange.response()) == health_types.SERVING:
            return
        if program.exit_code is not None:
            raise NotApplicable(f"the program ended: {program.output()[-200:]}")
        await pause()
