"""ERR-16, ERR-24, ERR-26, and ids, streams and adapters in the same place: requests that find no room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, CheckFunction, Phase, check
from enginewire.conformance.session.adapters import loaded, unload
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.company import FULL
from enginewire.conformance.session.context import Context, require_refusal
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.saturation import MOST_SLOTS
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.session.watching import until
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import NARROW
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.foreign import google_rpc, health_types
from enginewire.conformance.wire.loads import is_idle
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

NO_ROOM: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED,)
MOST_QUEUED: Final = 2048
BURST: Final = 32
READ_SECONDS: Final = 0.1
"""Between two messages of one of so many streams."""
BURST_SECONDS: Final = 0.02
"""Between two bursts, unless one is refused before."""
BEYOND: Final = 32
"""Requests sent beyond all room, so that a few that end early leave the queue full."""
FEW: Final = 2
"""Submits to a queue that is full."""


@dataclass(frozen=True, slots=True)
class Overload:
    """What was refused for want of room: calls, and requests that came over streams behind them."""

    calls: list[Exchange]
    submits: list[Exchange]
    health: Exchange | None
    """Of the service, asked for meanwhile."""
    state: pb.EngineState.ValueType
    """That of the load behind it."""
    accepted: int
    """How many were not refused, at most: some may not have arrived before they were cancelled."""
    finished: int
    """By how many `Load.requests_finished` grew meanwhile."""


def check_when_full(
    identifier: str, *, variant: str = "", needs: tuple[str, ...] = (), gate: str = ""
) -> Callable[[CheckFunction], CheckFunction]:
    """Register what holds also when there is no room.

    ERR-16 alone is judged in company too: each time takes a second.
    """
    needs = (*SHAPE, *needs, "ERR-16")
    return check(
        identifier, variant=variant, needs=needs, gate=gate, phase=Phase.LOAD, alone=True, in_company=False
    )


@check("ERR-16", needs=SHAPE, phase=Phase.LOAD, alone=True, not_beside=(FULL,))
async def overload_is_refused(ctx: Context) -> None:
    """More requests at once than there are slots and places in the queue: they fill the engine themselves."""
    for exchange in (await _overload(ctx)).calls:
        require_refusal(exchange, NO_ROOM, reason=pb.ERROR_REASON_QUEUE_FULL)
        detail = exchange.detail
        expect(detail and detail.retryable, "overload is not retryable", expected="retryable", seen=detail)


@check_when_full("ABO-06", variant="refused", needs=("LIM-01", "LIM-02"))
async def ids_without_room_are_free(ctx: Context) -> None:
    """One of those that were refused comes again, with the same id, when there is room."""
    exchange = (await _overload(ctx)).calls[-1]
    await ctx.idle()
    again = await ctx.start(ctx.request(request_id=_id(exchange))).end()
    message = "the id of a request that found no room is not free"
    expect(again.exchange.is_ok, message, expected="OK", seen=again.exchange.status)


@check_when_full("ABO-10", variant="without-room", needs=("ABO-03", "ABO-10"))
async def what_found_no_room_is_unknown(ctx: Context) -> None:
    """Another one of those."""
    exchange, *others = (await _overload(ctx)).calls
    if not others:
        raise NotApplicable("one request was refused for want of room, and its id is used again")
    (result,) = await ctx.client.abort([_id(exchange)])
    outcome = pb.AbortOutcome.Name(result.outcome)
    expect_equal(outcome, "ABORT_OUTCOME_UNKNOWN", "a request that found no room has another outcome")


@check_when_full("INF-13", variant="without-room", needs=("INF-13",))
async def what_found_no_room_never_finished(ctx: Context) -> None:
    """What is counted is what was accepted."""
    overload = await _overload(ctx)
    message = "Load.requests_finished counts requests that found no room"
    most = overload.accepted
    expect(overload.finished <= most, message, expected=f"at most {most}", seen=overload.finished)


@check_when_full("ERR-24")
async def overload_says_how_much(ctx: Context) -> None:
    """The same refusals."""
    for exchange in (await _overload(ctx)).calls:
        detail = exchange.detail or pb.ErrorDetail()
        wait = detail.retry_after.ToTimedelta().total_seconds()
        expect(wait > 0, "the refusal does not say when to come again", expected="retry_after", seen=detail)
        for key in ("queue_depth", "limit"):
            number = detail.metadata.get(key, "")
            message = f"the refusal does not say its {key}"
            expect(number.isdecimal(), message, expected="a number in metadata", seen=detail)


@check_when_full("ERR-26")
async def generic_clients_know_when_to_come_again(ctx: Context) -> None:
    """Of overload, when it tells a time."""
    calls = (await _overload(ctx)).calls
    waits = [e for e in calls if e.detail and e.detail.HasField("retry_after")]
    if not waits:
        raise NotApplicable("no refusal says when to come again, ERR-24 says whether it should")
    for exchange in waits:
        wait = (exchange.detail or pb.ErrorDetail()).retry_after.ToMilliseconds()
        info = google_rpc.unpacked(exchange.status_details or pb.Status(), "RetryInfo")
        seen = info and info.retry_delay.seconds * 1000 + info.retry_delay.nanos // 1_000_000
        expect_equal(seen, wait, "the google.rpc.RetryInfo says another time")
        pushback = dict(exchange.trailing_metadata).get(google_rpc.PUSHBACK_KEY)
        expect_equal(pushback, str(wait), f"the trailer {google_rpc.PUSHBACK_KEY} says another time")


@check_when_full("MUX-04", variant="without-room", needs=("MUX-04",), gate="multiplexed")
async def streams_tell_of_overload_like_calls(ctx: Context) -> None:
    """Submits that find no room, beside calls that find none."""
    overload = await _overload(ctx)
    if not overload.submits:
        raise NotApplicable("there is room again before a Submit comes")
    told = _told(overload.calls[-1])
    for exchange in overload.submits:
        expect_equal(_told(exchange), told, "the status of a Submit that finds no room is another one")


@check_when_full("INF-12", variant="without-room", needs=("INF-12",))
async def health_agrees_when_there_is_no_room(ctx: Context) -> None:
    """A server that is full is ready all the same."""
    overload = await _overload(ctx)
    if overload.health:
        serves = overload.state == pb.ENGINE_STATE_READY
        expected = health_types.SERVING if serves else health_types.NOT_SERVING
        seen = health_types.NAMES.get(health_types.status_of(overload.health.response()))
        message = f"health and Load.state {pb.EngineState.Name(overload.state)} disagree in a full server"
        expect_equal(seen, health_types.NAMES[expected], message)


@check_when_full("LOR-05", variant="refused", needs=("LOR-01", "LOR-05"))
async def adapters_are_free_of_what_was_refused(ctx: Context) -> None:
    """More requests for one than there is room for: when all have ended, none of them uses it."""
    async with loaded(ctx, ctx.session.options.sources(1)) as (name,):
        await _overloaded(ctx, lora_name=name)
        await ctx.idle()
        exchange = await unload(ctx, name)
        message = "an adapter stays in use by requests that found no room"
        expect(exchange.is_ok, message, expected="OK", seen=exchange.status)


def _id(exchange: Exchange) -> str:
    return cast(pb.GenerateRequest, exchange.request).request_id


def _told(exchange: Exchange) -> dict[str, object]:
    """What programs read of a refusal, its numbers aside."""
    detail, status = exchange.detail or pb.ErrorDetail(), exchange.status_details or pb.Status()
    return {
        "code": exchange.code and exchange.code.name,
        "details": sorted(entry.TypeName() for entry in status.details),
        "reason": pb.ErrorReason.Name(detail.reason),
        "fields": sorted(field.name for field, _ in detail.ListFields()),
        "metadata": sorted(detail.metadata),
    }


async def _overload(ctx: Context) -> Overload:
    """What was refused when there was no room; NotApplicable where it cannot be filled."""
    overload = await ctx.once("overload", lambda: _overloaded(ctx))
    for exchange in (*overload.calls, *overload.submits, overload.health):
        if exchange:
            ctx.show(exchange)
    return overload


async def _overloaded(ctx: Context, **changes: Value) -> Overload:
    if not (ctx.config.HasField("max_num_seqs") and ctx.limits.HasField("max_num_queued_reqs")):
        raise NotApplicable("EngineConfig.max_num_seqs or Limits.max_num_queued_reqs is absent")
    room = slots_of(ctx.config) + ctx.limits.max_num_queued_reqs
    if room > MOST_SLOTS + MOST_QUEUED:
        raise NotApplicable(f"{room} requests are more than the kit sends")
    overload, most_waiting = await _flood(ctx, room + BEYOND, **changes)
    most = ctx.limits.max_num_queued_reqs
    expect(most_waiting <= most, "more requests wait than fit", expected=most, seen=most_waiting)
    if not overload.calls:
        raise NotApplicable(f"the queue was never full: at most {most_waiting} of {most} places were taken")
    return overload


async def _flood(ctx: Context, count: int, **changes: Value) -> tuple[Overload, int]:
    """So many long requests at once: what failed, and how many waited at most."""
    observer, streams, most_waiting = ctx.connect(), list[Stream](), 0
    before = await ctx.idle()
    # All are read, or their data would fill the connection; but seldom and through a narrow window, or the
    # server would be busy with answers instead of requests. In bursts that an HTTP/2 stack takes, each on a
    # connection of its own, for many servers take a hundred calls from one and let the others wait unseen.
    readers = []
    while len(streams) < count and not _failed(streams):
        client = ctx.connect(None, *NARROW)
        wanted = [ctx.long_request(**changes) for _ in range(BURST)]
        burst = [ctx.start(each, client=client, timeout=ctx.bounds.check) for each in wanted]
        readers += [asyncio.ensure_future(_read_seldom(stream)) for stream in burst]
        streams += burst
        await asyncio.wait(readers, timeout=BURST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        most_waiting = max(most_waiting, _in_the_queue(ctx, await observer.load()))
    most_waiting = max(most_waiting, await _settled(ctx, observer, streams))
    failed = _failed(streams)
    asked = health_types.request(health_types.READINESS)
    health = await observer.ask(health_types.CHECK, asked) if failed else None
    state = (await observer.load()).state
    late = await _submitted(ctx, observer) if failed else []
    for stream in (*streams, *late):
        stream.cancel()
    await stop(readers)
    # The next check needs room; CON-07 says whether a load passes.
    with suppress(Violation):
        await until(ctx, is_idle, "", within=ctx.bounds.check / 2)
    calls, submits = ([stream.exchange for stream in some] for some in (failed, _failed(late)))
    accepted = len(streams) + len(late) - len(calls) - len(submits)
    finished = (await observer.load()).requests_finished - before.requests_finished
    return Overload(calls, submits, health, state, accepted, finished), most_waiting


async def _submitted(ctx: Context, client: Client) -> list[Stream]:
    """A few requests over streams, each of which was accepted or refused."""
    if not ctx.capabilities.multiplexed:
        return []
    streams = [ctx.start(ctx.long_request(), client=client, is_multiplexed=True) for _ in range(FEW)]
    await asyncio.gather(*(stream.call.accepted() for stream in streams))
    return streams


async def _read_seldom(stream: Stream) -> None:
    """To the end; a server gathers what waits for a reader."""
    async for _ in stream.call:
        await pause(READ_SECONDS)


async def _settled(ctx: Context, observer: Client, streams: list[Stream]) -> int:
    """Wait until one was refused or none waits any more; returns how many waited at most."""
    most, deadline = 0, time.monotonic() + ctx.bounds.answer
    while not _failed(streams) and time.monotonic() < deadline:
        load = await observer.load()
        most = max(most, _in_the_queue(ctx, load))
        if not load.waiting:
            break
        await pause()
    return most


def _in_the_queue(ctx: Context, load: pb.Load) -> int:
    """How many wait without a slot that they will have at the next step."""
    return load.waiting - max(slots_of(ctx.config) - load.running, 0)


def _failed(streams: list[Stream]) -> list[Stream]:
    """But for those that found room, and ended because they are read seldom."""
    ended = (stream for stream in streams if stream.exchange.code and not stream.exchange.is_ok)
    return [stream for stream in ended if not _was_slow(stream.exchange)]


def _was_slow(exchange: Exchange) -> bool:
    return bool(exchange.detail and exchange.detail.reason == pb.ERROR_REASON_SLOW_CONSUMER)
