"""MSG: how large things may be, and how many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from math import ceil
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.context import INVALID, Context, require_refusal
from enginewire.conformance.session.fields import UNKNOWN_NUMBER, length_delimited, text_fields, varint
from enginewire.conformance.session.invalid_requests import invalid_requests, send
from enginewire.conformance.session.sizes import most_alternatives
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import ANY_METADATA
from enginewire.conformance.wire.exchange import Exchange, Metadata
from enginewire.conformance.wire.methods import GENERATE
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

MIB: Final = 1024 * 1024
CLIENT_LIMIT: Final = 4 * MIB
"""What gRPC clients accept unless told otherwise."""

MOST_METADATA: Final = 8192
ENTRY_OVERHEAD: Final = 32
"""What HTTP/2 counts for an entry beside its name and value."""

NOT_UNPACKED: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
"""What gRPC demands for a compression that the server does not know, and what its C core says."""

LONGEST_ID: Final = 128
MOST_IDS: Final = 16_384
"""Of one abort that every server takes."""
ENTRY_BYTES: Final = 8
"""Of an answer, beside each of the longest ids: its length and an outcome, within a message of its own."""
BYTES_OF_A_NUMBER: Final = 4
MOST_INPUTS: Final = 2048
"""Of a request to embed."""

MOST_SENT: Final = 256 * MIB
UNHARMED: Final = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
"""What a stream has that went on until it was cancelled here."""

ROOM: Final = 4
GZIP: Final = b"\x04gzip"
NOBODYS: Final = b"\x04nzip"
"""Names of compressions as HTTP/2 says them, the second one of an algorithm that there is not."""
GZIP_PROMPT: Final = 512
CALLS: Final = 1000
CHANNELS: Final = 100
WATCH: Final = "DiscoveryService.WatchLoad"
PART_OF_CHECK: Final = 0.2
MOST_ROWS: Final = 32


@check("MSG-01", needs=(*SHAPE, "INF-04"))
async def full_windows_may_be_large(ctx: Context) -> None:
    """A prompt that fills the window, encoded in the wider of the two ways that protobuf allows."""
    prompt, _ = ctx.filling_prompt(ROOM)
    payload = _unpacked(ctx.request(max_tokens=ROOM), prompt)
    if ctx.limits.HasField("max_request_bytes") and len(payload) > ctx.limits.max_request_bytes:
        raise NotApplicable(f"Limits.max_request_bytes is below the {len(payload)} bytes of such a prompt")
    exchange = await ctx.client.generate(payload, timeout=ctx.bounds.generation(ROOM, len(prompt))).finish()
    message = f"a prompt of {len(prompt)} tokens in {len(payload)} bytes fails"
    expect(exchange.is_ok, message, expected="OK", seen=exchange.status)


@check("MSG-02", needs=SHAPE, alone=True)
async def what_is_too_large_is_refused(ctx: Context) -> None:
    """One byte more than is advertised, beside a stream on the same connection; as much as that is served."""
    if not ctx.limits.HasField("max_request_bytes"):
        raise NotApplicable("Limits.max_request_bytes is absent")
    most = ctx.limits.max_request_bytes
    if most > MOST_SENT:
        raise NotApplicable(f"{most} bytes are more than the kit sends")
    client = ctx.connect()
    good = await client.generate(_padded(ctx.request(), most), timeout=2 * ctx.bounds.answer).finish()
    expect(good.is_ok, "a message as large as is advertised is refused", expected="OK", seen=good.status)
    beside = await ctx.start(ctx.long_request(), client=client).first_token()
    # Read all the time: a server may end what nobody reads.
    reading = asyncio.ensure_future(beside.end())
    exchange = await client.generate(_padded(ctx.request(), most + 1), timeout=2 * ctx.bounds.answer).finish()
    codes = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE)
    message = "a message above the limit has another answer"
    expect(exchange.code in codes, message, expected="RESOURCE_EXHAUSTED", seen=exchange.status)
    await ctx.start(ctx.request(), client=client).ok()
    beside.cancel()
    await reading
    seen = beside.exchange.status
    expect(beside.exchange.code in UNHARMED, "a stream of the same connection failed", seen=seen)


@check("MSG-03", needs=(*SHAPE, "INF-09"), alone=True)
async def responses_are_small(ctx: Context) -> None:
    """The largest answers that may be asked for, in as few messages as the server likes."""
    any_size = ctx.connect(None, ("grpc.max_receive_message_length", -1))
    streams = [ctx.start(request, client=any_size) for request in _largest(ctx)]
    for stream in await asyncio.gather(*map(Stream.end, streams)):
        largest = _is_small(stream.exchange)
        refused = stream.exchange.code is grpc.StatusCode.INVALID_ARGUMENT and not largest
        expect(stream.exchange.is_ok or refused, "a large answer fails", seen=stream.exchange.status)


@check("MSG-03", variant="lists", phase=Phase.LOAD, alone=True, in_company=False, needs=("ABO-04/many",))
async def answers_to_lists_are_small(ctx: Context) -> None:
    """As many ids to abort, and inputs to embed, as would make one answer too large.

    They are refused. There are no more than 2,048 inputs, which are too many for large vectors alone.
    """
    client = ctx.connect(None, ("grpc.max_receive_message_length", -1))
    exchange = await _abort_many(ctx, client, CLIENT_LIMIT // (LONGEST_ID + ENTRY_BYTES) + 1)
    _is_small_or_refused(exchange, "request_ids")
    if ctx.capabilities.embeddings:
        exchange = await ctx.client.ask("EmbeddingService.Embed", _to_embed(ctx, 1))
        (vector,) = cast(pb.EmbedResponse, exchange.response()).output.embeddings
        count = CLIENT_LIMIT // (BYTES_OF_A_NUMBER * len(vector.values)) + 1
        exchange = await client.ask("EmbeddingService.Embed", _to_embed(ctx, min(count, MOST_INPUTS + 1)))
        _is_small_or_refused(exchange, "token_ids")


def _is_small(exchange: Exchange) -> int:
    """Each message that came; returns the bytes of the largest."""
    largest = max((arrived.size for arrived in exchange.arrived), default=0)
    limit = f"under {CLIENT_LIMIT} bytes"
    expect(largest < CLIENT_LIMIT, "a message is too large for a client", expected=limit, seen=largest)
    return largest


def _is_small_or_refused(exchange: Exchange, field: str) -> None:
    """Beyond what the server takes of bytes the library refuses."""
    _is_small(exchange)
    if not (exchange.is_ok or exchange.code is grpc.StatusCode.RESOURCE_EXHAUSTED):
        require_refusal(exchange, INVALID, field)


@check("ABO-04", variant="many", phase=Phase.LOAD, alone=True, in_company=False, needs=("ABO-03",))
async def as_many_as_there_may_be_are_named(ctx: Context) -> None:
    """Ids of the greatest length, none of them known: each has its outcome, in order."""
    client = ctx.connect(None, ("grpc.max_receive_message_length", -1))
    exchange = await _abort_many(ctx, client, MOST_IDS)
    results = cast(pb.AbortResponse, exchange.response()).results
    names = list(cast(pb.AbortRequest, exchange.request).request_ids)
    message = f"an abort of {MOST_IDS} ids has not one outcome for each, in their order"
    expect([result.request_id for result in results] == names, message, expected=MOST_IDS, seen=len(results))


async def _abort_many(ctx: Context, client: Client, count: int) -> Exchange:
    """An abort of so many ids, whatever its end; NotApplicable where the server takes no message so large."""
    run = ctx.request().request_id
    names = [f"{run}.{number}".ljust(LONGEST_ID, "-") for number in range(count)]
    request = pb.AbortRequest(request_ids=names)
    most = ctx.limits.max_request_bytes if ctx.limits.HasField("max_request_bytes") else CLIENT_LIMIT
    if request.ByteSize() > most:
        raise NotApplicable(f"{count} ids do not fit a message of {most} bytes")
    exchange = await client.ask("EngineService.Abort", request, timeout=ctx.bounds.check / 2)
    if exchange.timed_out:
        raise NotApplicable(f"an abort of {count} ids takes longer than the kit waits")
    return exchange


def _to_embed(ctx: Context, count: int) -> pb.EmbedRequest:
    """A request of so many short inputs."""
    inputs = [pb.TokenSequence(token_ids=ctx.prompt(1))] * count
    asked = pb.PreprocessedEmbeddingRequest(token_ids=inputs)
    return pb.EmbedRequest(request_id=ctx.request().request_id, request=asked)


@check("MSG-04", needs=SHAPE, alone=True, counts_prompt=True)
async def gzip_is_accepted(ctx: Context) -> None:
    """A prompt that is worth being compressed."""
    length = min(GZIP_PROMPT, ctx.longest_prompt(ROOM))
    plain, packed = (ctx.request(token_ids=ctx.prompt(length)) for _ in range(2))
    tokens = (await ctx.generate(plain)).tokens
    deadline = ctx.bounds.generation(ROOM, length)
    call = ctx.client.call(GENERATE, packed, timeout=deadline, compression=grpc.Compression.Gzip)
    stream = await Stream(packed, call).end()
    expect(stream.exchange.is_ok, "a compressed request fails", expected="OK", seen=stream.exchange.status)
    expect_equal(stream.tokens, tokens, "a compressed request has other tokens")


@check("MSG-07", needs=SHAPE)
async def unknown_compression_is_refused(ctx: Context) -> None:
    """What gzip packed, under a name that nobody has; then a good request."""
    if ctx.session.connection.tls:
        raise NotApplicable("TLS hides the name of a compression from the kit's proxy")
    proxy, client = await ctx.proxy()
    proxy.rename(GZIP, NOBODYS)
    request = ctx.request(token_ids=ctx.prompt(min(GZIP_PROMPT, ctx.longest_prompt(ROOM))))
    call = client.call(GENERATE, request, timeout=2 * ctx.bounds.answer, compression=grpc.Compression.Gzip)
    exchange = await call.finish()
    require_refusal(exchange, NOT_UNPACKED)
    await ctx.generate(ctx.request())


@check("MSG-05", needs=SHAPE, phase=Phase.LOAD, alone=True, costly=True)
async def many_calls_are_borne(ctx: Context) -> None:
    """Calls in a row on one channel; then channels that are all in use at the same time.

    A request comes over each of these, or over as many as there is time for.
    """
    client, turns, asked = ctx.session.client(), asyncio.Lock(), ctx.times(CHANNELS)

    async def call(number: int) -> None:
        exchange = await client.ask("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest())
        _require_ok(ctx, exchange, f"call {number + 1} in a row failed")

    async def channel(number: int) -> None:
        own = ctx.connect()
        if ctx.capabilities.watch_load:
            watch = own.call(WATCH, pb.WatchLoadRequest(), timeout=ctx.bounds.check)
            if await anext(watch, None) is None:
                _require_ok(ctx, watch.exchange, f"channel {number + 1} failed")
                raise Violation(f"channel {number + 1} got no answer", seen=watch.exchange.status)
        else:
            # Open, but in use only for a moment.
            exchange = await own.ask("DiscoveryService.GetLoad", pb.GetLoadRequest())
            _require_ok(ctx, exchange, f"channel {number + 1} failed")
        if number < asked:
            async with turns:  # together they might find no room
                stream = await ctx.start(ctx.request(max_tokens=1), client=own).end()
            _require_ok(ctx, stream.exchange, f"a request over channel {number + 1} failed")

    await _one_after_the_other(ctx, CALLS, call)
    await _one_after_the_other(ctx, CHANNELS, channel)
    await ctx.generate(ctx.request())


@check("MSG-06", needs=SHAPE)
async def metadata_is_small(ctx: Context) -> None:
    """Headers and trailers of refusals and of a good call."""
    client = ctx.connect(None, *ANY_METADATA)
    good = await (await ctx.start(ctx.request(), client=client).accepted()).ok()
    refused = await send(ctx, invalid_requests(ctx), client)
    for exchange in [good.exchange, *(entry.exchange for entry in refused)]:
        _require_small_metadata(exchange)


@check("MSG-06", variant="long-texts", needs=(*SHAPE, "MSG-06"), in_company=False)
async def long_texts_do_not_come_back(ctx: Context) -> None:
    """Headers and trailers of what a long text gets, in each field that has a text."""
    client = ctx.connect(None, *ANY_METADATA)
    for request in _with_long_texts(ctx):
        _require_small_metadata((await ctx.start(request, client=client).end()).exchange)


def _require_small_metadata(exchange: Exchange) -> None:
    # The text of a status travels as metadata too.
    text = (("grpc-message", exchange.text.encode()),)
    for entries in (exchange.initial_metadata, (*exchange.trailing_metadata, *text)):
        size = _metadata_bytes(entries)
        limit = f"at most {MOST_METADATA} bytes"
        expect(size <= MOST_METADATA, "the metadata of a call is too large", expected=limit, seen=size)


def _with_long_texts(ctx: Context) -> Iterator[pb.GenerateRequest]:
    """A request for each text field there is, with more in it than there may be metadata."""
    text = "x" * MOST_METADATA
    yield ctx.request(request_id=text)
    for path in text_fields():
        request = ctx.request(max_tokens=1)
        path.put(request, text)
        yield request


async def _one_after_the_other(ctx: Context, count: int, one: Callable[[int], Awaitable[None]]) -> None:
    """In as many rows side by side as a target far away needs to be done in a part of the check's time."""
    started = time.monotonic()
    await one(0)
    rows = ceil(count * (time.monotonic() - started) / (ctx.bounds.check * PART_OF_CHECK))
    numbers = iter(range(1, count))

    async def row() -> None:
        for number in numbers:
            await one(number)

    tasks = [asyncio.ensure_future(row()) for _ in range(min(max(rows, 1), MOST_ROWS))]
    try:
        await asyncio.gather(*tasks)
    finally:
        await stop(tasks)


def _unpacked(request: pb.GenerateRequest, prompt: list[int]) -> bytes:
    """The request with this prompt, one tag per token id."""
    request.request.ClearField("token_ids")
    tag = varint(pb.PreprocessedRequest.TOKEN_IDS_FIELD_NUMBER << 3)
    inner = b"".join(tag + varint(token) for token in prompt)
    return request.SerializeToString() + length_delimited(pb.GenerateRequest.REQUEST_FIELD_NUMBER, inner)


def _padded(request: pb.GenerateRequest, size: int) -> bytes:
    """The request in exactly so many bytes, with a field that nobody knows."""
    payload = request.SerializeToString()
    room = size - len(payload)
    head = len(length_delimited(UNKNOWN_NUMBER, bytes(room))) - room
    return payload + length_delimited(UNKNOWN_NUMBER, bytes(room - head))


def _largest(ctx: Context) -> list[pb.GenerateRequest]:
    """Requests whose answers have as many numbers as may be asked for, of a size that ends in time."""
    window = ctx.context_length() if ctx.config.HasField("context_length") else 1024
    tokens = ctx.tokens(max(ctx.bounds.tokens_in(ctx.bounds.reaction), 16))
    wanted = [ctx.request(max_tokens=tokens, stream_interval=tokens)]
    if ctx.capabilities.logprobs:
        most = most_alternatives(ctx.config)
        wanted.append(ctx.request(max_tokens=tokens, stream_interval=tokens, logprobs=most))
    if ctx.capabilities.prompt_logprobs:
        most = ctx.limits.max_prompt_logprobs if ctx.limits.HasField("max_prompt_logprobs") else 20
        prompt = ctx.prompt(min(window - ROOM, ctx.longest_prompt(ROOM)))
        wanted.append(ctx.request(token_ids=prompt, max_tokens=ROOM, prompt_logprobs=most))
    return wanted


def _require_ok(ctx: Context, exchange: Exchange, message: str) -> None:
    if not exchange.is_ok:
        ctx.show(exchange)
        raise Violation(message, expected="OK", seen=exchange.status)


def _metadata_bytes(entries: Metadata) -> int:
    return sum(len(name) + _encoded_bytes(value) + ENTRY_OVERHEAD for name, value in entries)


def _encoded_bytes(value: str | bytes) -> int:
    """Binary values travel as base64."""
    return len(value) if isinstance(value, str) else -(-len(value) * 4 // 3)
