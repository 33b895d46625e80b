"""ERR-08, ERR-09, ERR-10, ERR-15, ERR-20: bytes and calls that no client of this contract sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.fields import FieldPath, text_fields, unknown_fields
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.methods import GENERATE
from enginewire.conformance.wire.violation import expect, expect_equal

GARBAGE: Final = (b"\x0a\xff", b"\xff" * 11, b"\x1a\x7fshort")
"""A length without its bytes, a number without end, a message that is cut. JavaScript reads a tag of zero."""

GARBLED: Final = (
    GENERATE,
    "EngineService.Abort",
    "DiscoveryService.GetLoad",
    "DiscoveryService.GetEngineInfo",
)

UNPARSED: Final = frozenset(
    {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
)
"""What libraries answer to bytes that do not parse."""

MISCOUNTED: Final = UNPARSED | {grpc.StatusCode.UNIMPLEMENTED}
"""What libraries answer to a call without the one message it takes, if they do not wait for it."""

NOT_UTF8: Final = b"\xff\xfe\xc3("

NOBODY: Final = (
    "/enginewire.v1.EngineService/NoSuchMethod",
    "/enginewire.v1.NoSuchService/Generate",
    "/no.such.package.Service/Generate",
)


@check("ERR-08", needs=SHAPE)
async def unknown_fields_are_ignored(ctx: Context) -> None:
    """One of each wire type at every level of a request, and in the control RPCs."""
    plain = await ctx.generate(ctx.request())
    request = ctx.request()
    inner = request.request
    for message in (inner.stop_conditions, inner.sampling_options, inner.output_options, inner.routing):
        message.MergeFromString(unknown_fields())
    inner.MergeFromString(unknown_fields())
    request.MergeFromString(unknown_fields())
    stream = await ctx.start(request).end()
    expect(
        stream.exchange.is_ok, "unknown fields are not ignored", expected="OK", seen=stream.exchange.status
    )
    expect_equal(stream.tokens, plain.tokens, "unknown fields changed the tokens")
    for name in ("DiscoveryService.GetEngineInfo", "DiscoveryService.GetLoad"):
        exchange = await ctx.client.ask(name, unknown_fields())
        expect(
            exchange.is_ok, f"unknown fields of {name} are not ignored", expected="OK", seen=exchange.status
        )


@check("ERR-09", needs=SHAPE)
async def garbage_is_answered(ctx: Context) -> None:
    """Several kinds of malformed bytes to several RPCs, then a good request."""
    for name in GARBLED:
        for payload in GARBAGE:
            exchange = await ctx.client.ask(name, payload)
            _require_unparsed(exchange, f"bytes that do not parse, sent to {name}")
    await ctx.generate(ctx.request())


@check("ERR-20", needs=SHAPE, costly=True)
async def one_message_is_sent(ctx: Context) -> None:
    """No message and two of them, to RPCs that take one; then a good request."""

    async def one(name: str, request: Message, count: int) -> None:
        timeout = 2 * ctx.bounds.answer if count else ctx.bounds.reaction
        exchange = await ctx.client.call(name, _times(count, request), timeout=timeout).finish()
        # A library may wait for the message that is missing, and may not look for a second one.
        lenient = grpc.StatusCode.OK if count else grpc.StatusCode.DEADLINE_EXCEEDED
        known = exchange.code in MISCOUNTED or exchange.code is lenient
        names = " or ".join(sorted(code.name for code in MISCOUNTED))
        message = f"{name} with {count} messages has another answer"
        expect(known, message, expected=names, seen=exchange.status)

    calls = [(name, request, count) for name, request in _plain(ctx).items() for count in (0, 2)]
    await asyncio.gather(*(one(*call) for call in calls))
    await ctx.generate(ctx.request())


@check("ERR-10", needs=SHAPE)
async def text_is_utf8(ctx: Context) -> None:
    """Bytes that are no UTF-8 in every string field that the descriptors know."""
    slots = asyncio.Semaphore(4)

    async def one(path: FieldPath) -> None:
        async with slots:
            plain = await _with_text(ctx, path, b"text")
            broken = await _with_text(ctx, path, NOT_UTF8)
            if broken.code not in (grpc.StatusCode.OK, plain.code):
                _require_unparsed(broken, f"{path.name} that is not UTF-8")

    await asyncio.gather(*map(one, text_fields()))
    await ctx.generate(ctx.request())


@check("ERR-15", needs=SHAPE)
async def unknown_methods_are_unimplemented(ctx: Context) -> None:
    """A method, a service and a package that nobody has."""
    for path in NOBODY:
        exchange = await ctx.client.ask(path, pb.GenerateRequest())
        unimplemented = exchange.code is grpc.StatusCode.UNIMPLEMENTED
        expect(unimplemented, f"{path} exists", expected="UNIMPLEMENTED", seen=exchange.status)


def _plain(ctx: Context) -> dict[str, Message]:
    """A good message for each of the RPCs that take one and change nothing."""
    return {
        GENERATE: ctx.request(),
        "EngineService.Abort": pb.AbortRequest(request_ids=[f"{ctx.request().request_id}-unknown"]),
        "DiscoveryService.GetLoad": pb.GetLoadRequest(),
        "DiscoveryService.GetEngineInfo": pb.GetEngineInfoRequest(),
    }


async def _times(count: int, message: Message) -> AsyncIterator[Message | bytes]:
    for _ in range(count):
        yield message


async def _with_text(ctx: Context, path: FieldPath, text: bytes) -> Exchange:
    payload = ctx.request().SerializeToString() + path.encoded(text)
    return await ctx.client.generate(payload, timeout=ctx.bounds.generation(64)).finish()


def _require_unparsed(exchange: Exchange, what: str) -> None:
    known = exchange.code in UNPARSED and not exchange.timed_out
    names = " or ".join(sorted(code.name for code in UNPARSED))
    expect(known, f"{what}, have another answer", expected=names, seen=exchange.status)
    expect(not exchange.arrived, f"{what}, were answered with a message", seen=len(exchange.arrived))
