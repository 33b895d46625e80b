"""ERR-11 to ERR-14, ERR-16, ERR-18, ERR-19, ERR-24 to ERR-26, ABO-06: what all refusals have in common."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.company import FULL
from enginewire.conformance.session.context import Context, describe_load
from enginewire.conformance.session.fields import without_indexes
from enginewire.conformance.session.invalid_requests import Refused, invalid_requests, refusals, send
from enginewire.conformance.session.saturation import MOST_SLOTS
from enginewire.conformance.session.watching import is_idle, until
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import NARROW
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.foreign import google_rpc
from enginewire.conformance.wire.secrets import SECRETS
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

MOST_DETAIL_BYTES: Final = 4096
REPEATS: Final = 10
MOST_QUEUED: Final = 2048
BURST: Final = 32
READ_SECONDS: Final = 0.1
"""Between two messages of one of so many streams."""
BURST_SECONDS: Final = 0.02
"""Between two bursts, unless one is refused before."""
BEYOND: Final = 32
FEW: Final = 2
"""Requests sent beyond all room, so that a few that end early leave the queue full."""


@check("ERR-11", needs=SHAPE)
async def validation_comes_first(ctx: Context) -> None:
    """No message before a refusal."""
    for refused in await refusals(ctx):
        count = len(refused.exchange.arrived)
        expect(not count, f"a message came before the refusal of {refused.invalid.wrong}", seen=count)


@check("ERR-12", needs=SHAPE)
async def refusals_have_details(ctx: Context) -> None:
    """Reason, field, retryable, and their size."""
    for refused in await refusals(ctx):
        _require_details(refused)


@check("ERR-13", needs=SHAPE)
async def refusals_do_not_change(ctx: Context) -> None:
    """The suite ten times."""
    first = {refused.invalid.wrong: refused.exchange.code for refused in await refusals(ctx)}
    for _ in range(REPEATS - 1):
        for refused in await send(ctx, [each for each in invalid_requests(ctx) if each.wrong in first]):
            wrong, code = refused.invalid.wrong, refused.exchange.code
            if code is not first[wrong]:
                ctx.show(refused.exchange)
                raise Violation(
                    f"{wrong} gets another code each time",
                    expected=first[wrong],
                    seen=refused.exchange.status,
                )


@check("ERR-14", needs=SHAPE, alone=True)
async def refusals_leave_nothing(ctx: Context) -> None:
    """The load of the idle server, before and after the suite."""
    known = {refused.invalid.wrong for refused in await refusals(ctx)}
    before = await ctx.idle()
    for refused in await send(ctx, [invalid for invalid in invalid_requests(ctx) if invalid.wrong in known]):
        after = await ctx.client.load()
        is_idle = not (after.running or after.waiting or after.kv_blocks_used)
        message = "a refused request holds something"
        expect(is_idle, message, expected="running 0, waiting 0, kv_blocks_used 0", seen=describe_load(after))
        for name in ("kv_blocks_cached", "waiting_tokens", "tokens_generated", "pending_transfers"):
            expect_equal(
                getattr(after, name), getattr(before, name), f"{refused.invalid.wrong} changed Load.{name}"
            )


@check("ERR-16", needs=SHAPE, phase=Phase.LOAD, alone=True, not_beside=(FULL,))
async def overload_is_refused(ctx: Context) -> None:
    """More requests at once than there are slots and places in the queue: they fill the engine themselves."""
    for exchange in await _overload(ctx):
        _require_overload(exchange)


@check(
    "ABO-06",
    variant="refused",
    needs=(*WHOLE, "ERR-16"),
    phase=Phase.LOAD,
    alone=True,
    in_company=False,
)
async def ids_without_room_are_free(ctx: Context) -> None:
    """One of those that were refused comes again, with the same id, when there is room."""
    *_, exchange = await _overload(ctx)
    refused = cast(pb.GenerateRequest, exchange.request)
    await ctx.idle()
    again = await ctx.start(ctx.request(request_id=refused.request_id)).end()
    message = "the id of a request that found no room is not free"
    expect(again.exchange.is_ok, message, expected="OK", seen=again.exchange.status)


@check(
    "ABO-10",
    variant="without-room",
    needs=(*SHAPE, "ABO-03", "ABO-10", "ERR-16"),
    phase=Phase.LOAD,
    alone=True,
    in_company=False,
)
async def what_found_no_room_is_unknown(ctx: Context) -> None:
    """Another one of those."""
    exchange, *others = await _overload(ctx)
    if not others:
        raise NotApplicable("one request was refused for want of room, and its id is used again")
    name = cast(pb.GenerateRequest, exchange.request).request_id
    (result,) = await ctx.client.abort([name])
    outcome = pb.AbortOutcome.Name(result.outcome)
    expect_equal(outcome, "ABORT_OUTCOME_UNKNOWN", "a request that found no room has another outcome")


# One of those that fill the engine is judged in company too: each time takes a second.
@check("ERR-24", needs=(*SHAPE, "ERR-16"), phase=Phase.LOAD, alone=True, in_company=False)
async def overload_says_how_much(ctx: Context) -> None:
    """The same refusals."""
    for exchange in await _overload(ctx):
        detail = exchange.detail or pb.ErrorDetail()
        wait = detail.retry_after.ToTimedelta().total_seconds()
        expect(wait > 0, "the refusal does not say when to come again", expected="retry_after", seen=detail)
        for key in ("queue_depth", "limit"):
            number = detail.metadata.get(key, "")
            message = f"the refusal does not say its {key}"
            expect(number.isdecimal(), message, expected="a number in metadata", seen=detail)


@check("ERR-25", needs=(*SHAPE, "ERR-12"))
async def generic_tools_can_read_refusals(ctx: Context) -> None:
    """The reason and the field of each, in words of google.rpc."""
    for refused in await refusals(ctx):
        wrong, detail = refused.invalid.wrong, refused.exchange.detail or pb.ErrorDetail()
        status = refused.exchange.status_details or pb.Status()
        info = google_rpc.unpacked(status, "ErrorInfo")
        seen = f"{info.domain} {info.reason}" if info else "none"
        expected = f"{google_rpc.DOMAIN} {google_rpc.name_of(detail.reason)}"
        expect_equal(seen, expected, f"the google.rpc.ErrorInfo of {wrong} is another one")
        bad = google_rpc.unpacked(status, "BadRequest")
        named = [violation.field for violation in bad.field_violations] if bad else []
        message = f"the google.rpc.BadRequest of {wrong} names another field"
        expect_equal(named, [detail.field] if detail.field else [], message)


@check("ERR-26", needs=(*SHAPE, "ERR-16"), phase=Phase.LOAD, alone=True, in_company=False)
async def generic_clients_know_when_to_come_again(ctx: Context) -> None:
    """Of overload, when it tells a time."""
    waits = [e for e in await _overload(ctx) if e.detail and e.detail.HasField("retry_after")]
    if not waits:
        raise NotApplicable("no refusal says when to come again, ERR-24 says whether it should")
    for exchange in waits:
        wait = (exchange.detail or pb.ErrorDetail()).retry_after.ToMilliseconds()
        info = google_rpc.unpacked(exchange.status_details or pb.Status(), "RetryInfo")
        seen = info and info.retry_delay.seconds * 1000 + info.retry_delay.nanos // 1_000_000
        expect_equal(seen, wait, "the google.rpc.RetryInfo says another time")
        pushback = dict(exchange.trailing_metadata).get(google_rpc.PUSHBACK_KEY)
        expect_equal(pushback, str(wait), f"the trailer {google_rpc.PUSHBACK_KEY} says another time")


async def _overload(ctx: Context) -> list[Exchange]:
    """What was refused when there was no room; NotApplicable where it cannot be filled."""
    exchanges = await ctx.once("overload", lambda: _overloaded(ctx))
    for exchange in exchanges:
        ctx.show(exchange)
    return exchanges


async def _overloaded(ctx: Context) -> list[Exchange]:
    if not (ctx.config.HasField("max_num_seqs") and ctx.limits.HasField("max_num_queued_reqs")):
        raise NotApplicable("EngineConfig.max_num_seqs or Limits.max_num_queued_reqs is absent")
    room = ctx.config.max_num_seqs * max(ctx.config.data_parallel_size, 1) + ctx.limits.max_num_queued_reqs
    if room > MOST_SLOTS + MOST_QUEUED:
        raise NotApplicable(f"{room} requests are more than the kit sends")
    refused, most_waiting = await _flood(ctx, room + BEYOND)
    most = ctx.limits.max_num_queued_reqs
    expect(most_waiting <= most, "more requests wait than fit", expected=most, seen=most_waiting)
    if not refused:
        raise NotApplicable(f"the queue was never full: at most {most_waiting} of {most} places were taken")
    return [stream.exchange for stream in refused]


@check("ERR-18", needs=SHAPE)
async def messages_tell_no_secrets(ctx: Context) -> None:
    """Texts and details of all refusals."""
    for refused in await refusals(ctx):
        said = _said(refused.exchange)
        for what, pattern in SECRETS.items():
            found = pattern.search(said)
            expect(
                not found,
                f"a message contains {what}",
                seen=found and said[max(found.start() - 40, 0) :][:120],
            )
        ids = refused.invalid.request.request.token_ids[:3]
        echoed = len(ids) == 3 and re.search(r"\D+".join(map(str, ids)), said)
        expect(not echoed, "a message contains the prompt", seen=said[:120])


@check("ERR-19", needs=SHAPE, alone=True)
async def invalid_requests_are_survived(ctx: Context) -> None:
    """Each of the suite, and after each of them a good request."""
    life = (await ctx.client.load()).engine_lifetime_id
    tokens = (await ctx.generate(ctx.request(max_tokens=FEW))).tokens
    for invalid in invalid_requests(ctx):
        exchange = await ctx.refused(invalid.request)
        again = await ctx.start(ctx.request(max_tokens=FEW)).end()
        message = f"after {invalid.wrong} ({exchange.status}) a good request fails"
        expect(again.exchange.is_ok, message, expected="OK", seen=again.exchange.status)
        expect_equal(again.tokens, tokens, f"after {invalid.wrong} a good request has other tokens")
    now = (await ctx.client.load()).engine_lifetime_id
    expect_equal(now, life, "the engine began another life after an invalid request")


def _require_details(refused: Refused) -> None:
    exchange, wrong = refused.exchange, refused.invalid.wrong
    detail, details = exchange.detail, exchange.status_details
    if detail is None or details is None:
        raise Violation(f"the refusal of {wrong} carries no ErrorDetail", seen=exchange.status)
    expect(detail.reason, f"the refusal of {wrong} has no reason", seen=detail)
    if detail.reason == refused.invalid.reason:
        seen = without_indexes(detail.field)
        expect(seen, f"the refusal of {wrong} names no field", expected=refused.invalid.field)
    expect(not detail.retryable, f"the refusal of {wrong} says retryable", seen=detail)
    size = sum(entry.ByteSize() for entry in details.details)
    expect(
        size < MOST_DETAIL_BYTES,
        f"the details of {wrong} are too large",
        expected=f"under {MOST_DETAIL_BYTES} bytes",
        seen=size,
    )


async def _flood(ctx: Context, count: int) -> tuple[list[Stream], int]:
    """So many long requests at once: those that failed, and how many waited at most."""
    observer, streams, most_waiting = ctx.connect(), list[Stream](), 0
    # All are read, or their data would fill the connection; but seldom and through a narrow window, or the
    # server would be busy with answers instead of requests. In bursts that an HTTP/2 stack takes, each on a
    # connection of its own, for many servers take a hundred calls from one and let the others wait unseen.
    readers = []
    while len(streams) < count and not _failed(streams):
        client = ctx.connect(None, *NARROW)
        burst = [ctx.start(ctx.long_request(), client=client, timeout=ctx.bounds.check) for _ in range(BURST)]
        readers += [asyncio.ensure_future(_read_seldom(stream)) for stream in burst]
        streams += burst
        await asyncio.wait(readers, timeout=BURST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        most_waiting = max(most_waiting, _in_the_queue(ctx, await observer.load()))
    most_waiting = max(most_waiting, await _settled(ctx, observer, streams))
    failed = _failed(streams)
    for stream in streams:
        stream.cancel()
    await stop(readers)
    # The next check needs room; CON-07 says whether a load passes.
    with suppress(Violation):
        await until(ctx, is_idle, "", within=ctx.bounds.check / 2)
    return failed, most_waiting


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
    slots = ctx.config.max_num_seqs * max(ctx.config.data_parallel_size, 1)
    return load.waiting - max(slots - load.running, 0)


def _failed(streams: list[Stream]) -> list[Stream]:
    """But for those that found room, and ended because they are read seldom."""
    ended = (stream for stream in streams if stream.exchange.code and not stream.exchange.is_ok)
    return [stream for stream in ended if not _was_slow(stream.exchange)]


def _was_slow(exchange: Exchange) -> bool:
    return bool(exchange.detail and exchange.detail.reason == pb.ERROR_REASON_SLOW_CONSUMER)


def _require_overload(exchange: Exchange) -> None:
    expect(
        exchange.code is grpc.StatusCode.RESOURCE_EXHAUSTED,
        "overload has another status",
        expected="RESOURCE_EXHAUSTED",
        seen=exchange.status,
    )
    detail = exchange.detail or pb.ErrorDetail()
    name = pb.ErrorReason.Name(pb.ERROR_REASON_QUEUE_FULL)
    expect(
        detail.reason == pb.ERROR_REASON_QUEUE_FULL, "overload has another reason", expected=name, seen=detail
    )
    expect(detail.retryable, "overload is not retryable", expected="retryable", seen=detail)


def _said(exchange: Exchange) -> str:
    details = exchange.status_details or pb.Status()
    texts = [exchange.text, str(exchange.detail or "")]
    return "\n".join([*texts, *(entry.value.decode("latin-1") for entry in details.details)])
