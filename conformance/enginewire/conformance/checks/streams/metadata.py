"""MDT: what travels beside a request."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, check, negative
from enginewire.conformance.session import requests
from enginewire.conformance.session.company import FULL
from enginewire.conformance.session.context import INVALID, REFUSALS, Context, require_refusal
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.saturation import KINDS
from enginewire.conformance.session.sizes import ranks_of
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.methods import GENERATE
from enginewire.conformance.wire.violation import expect, expect_equal

VALID_TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MALFORMED_TRACES: Final = (
    "garbage",
    "00-00000000000000000000000000000000-0000000000000000-00",
    "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
    "00-" + "0" * 400,
)

ORDINARY_TEXT: Final = 3000
ORDINARY_BYTES: Final = 2000
"""With their names, base64 and HTTP/2's 32 bytes for each of the three entries, a little below 6 KiB."""

TOO_LONG: Final = 20 * 1024
LONGEST_ID: Final = 128
UINT32_MAX: Final = 2**32 - 1
PRIORITY: Final = "enginewire-priority"
RANK: Final = "enginewire-dp-rank"
KEYS: Final = {
    "priority": (PRIORITY, "priority"),
    "dp_rank": (RANK, "data_parallel"),
    "routing_key": ("enginewire-routing-key", "nothing"),
}
"""Each reserved key by its field of `routing`, and the capability with which a server reads it."""

UNREADABLE_KEYS: Final = ("7", "none")

NO_NUMBERS: Final = (
    "abc",
    "1.5",
    "2147483648",
    "99999999999999999999",
    "1_0",
    "+10",
    "0x10",
    "1e1",
    "--1",
    "-",
    "1,0",
    "1 0",
)
"""What is no decimal number, though some languages read it as one."""
IN_TEXT_ALONE: Final = (" 10", "10 ", "\t10", "\u0661\u0660", "\uff11\uff10", "\u22121", "1\u2009000")
"""The same, where it is not a header: blanks around it, and digits of other scripts."""


@check("MDT-01", needs=SHAPE)
async def traces_do_no_harm(ctx: Context) -> None:
    """A valid traceparent and several malformed ones, with every RPC that changes nothing."""
    for trace in (VALID_TRACE, *MALFORMED_TRACES):
        metadata = (("traceparent", trace), ("tracestate", "kit=1"))
        await _expect_answers(ctx, metadata, f"traceparent {trace[:60]}")


@check("MDT-03", needs=SHAPE)
async def unknown_keys_are_accepted(ctx: Context) -> None:
    """Text and bytes that nobody knows, some kilobytes of them."""
    text, binary = "x" * ORDINARY_TEXT, bytes(range(250)) * (ORDINARY_BYTES // 250)
    metadata: Metadata = (("x-kit-text", text), ("x-kit-bytes-bin", binary), ("x-kit-empty", ""))
    await _expect_answers(ctx, metadata, "metadata that nobody knows")


@check("MDT-03", variant="unread", needs=(*SHAPE, "MDT-03"))
async def keys_that_do_not_count_are_accepted(ctx: Context) -> None:
    """Reserved ones of capabilities that the server has not, and of routers: numbers, and what is none.

    With every RPC, beside a field that says something else, and in the metadata of a request of a stream.
    """
    served: dict[str, Value] = {"dp_rank": ranks_of(ctx.config).start, "routing_key": "of the kit"}
    fields = {name: value for name, value in served.items() if KEYS[name][1] not in _advertised(ctx)}
    keys = [key for key, capability in KEYS.values() if capability not in _advertised(ctx)]
    for text in UNREADABLE_KEYS:
        metadata = tuple((key, text) for key in keys)
        await _expect_answers(ctx, metadata, f"{' and '.join(keys)} of {text!r}")
        for changes, is_multiplexed in ((fields, False), ({}, True), (fields, True)):
            request = ctx.request(max_tokens=1, **changes)
            stream = ctx.start(request, metadata=metadata, is_multiplexed=is_multiplexed)
            exchange = (await stream.end()).exchange
            message = f"{' or '.join(keys)} of {text!r} is read"
            expect(exchange.is_ok, message, expected="OK", seen=exchange.status)


def _advertised(ctx: Context) -> set[str]:
    return {name for name in ("priority", "data_parallel") if getattr(ctx.capabilities, name)}


async def _expect_answers(ctx: Context, metadata: Metadata, what: str) -> None:
    for name, request in _calls(ctx):
        call = ctx.client.call(name, request, metadata=metadata, timeout=2 * ctx.bounds.answer)
        # Some of them never end by themselves: a message is an answer as well.
        answered = await anext(call, None) is not None or call.exchange.is_ok
        call.cancel()
        expect(answered, f"{name} is refused with {what}", expected="OK", seen=call.exchange.status)


@check("MDT-07", needs=SHAPE)
async def large_metadata_is_survived(ctx: Context) -> None:
    """Twenty kilobytes of it, then a good request."""
    client = ctx.connect(None, ("grpc.max_metadata_size", 2 * TOO_LONG))
    metadata: Metadata = (("x-kit-text", "x" * TOO_LONG),)
    call = client.call(GENERATE, ctx.request(), metadata=metadata, timeout=2 * ctx.bounds.answer)
    exchange = await call.finish()
    if not exchange.is_ok:
        require_refusal(exchange, (grpc.StatusCode.RESOURCE_EXHAUSTED,))
    await ctx.generate(ctx.request())


@check("MDT-04", needs=(*SHAPE, "STR-07"))
async def ids_come_back_as_they_were(ctx: Context) -> None:
    """The longest id there is, of all characters that an id may have."""
    run = ctx.request().request_id
    for ending in (".a:B_c-D", "-" * (LONGEST_ID - len(run)), "..", ":0"):
        request = requests.change(ctx.request(), request_id=run + ending)
        stream = await ctx.generate(request)
        for response in stream.responses:
            message = "a request_id comes back changed"
            expect_equal(response.request_id, request.request_id, message)


@check("MDT-05", needs=SHAPE, not_beside=(FULL,))
async def reserved_keys_are_read(ctx: Context) -> None:
    """A number; no number; another number than the field's, also when that is 0."""
    await _with_metadata(ctx, ctx.request(), (PRIORITY, "1"), is_good=True)
    for wrong in ("", *NO_NUMBERS):
        await _with_metadata(ctx, ctx.request(), (PRIORITY, wrong), is_good=False)
    await _with_metadata(ctx, ctx.request(priority=1), (PRIORITY, "1"), is_good=True)
    for priority in (1, 0):
        await _with_metadata(ctx, ctx.request(priority=priority), (PRIORITY, "2"), is_good=False)


@check(
    "MDT-05",
    variant="multiplexed",
    gate="multiplexed",
    needs=(*SHAPE, "MDT-05", "MUX-04"),
    alone=True,
    not_beside=(FULL,),
)
async def reserved_keys_of_submits_are_read(ctx: Context) -> None:
    """A number, none, and others than the field's, in the metadata of requests of one stream; then no key."""
    wrong = [(1, "2"), (0, "2"), (1, ""), *((None, text) for text in (*NO_NUMBERS, *IN_TEXT_ALONE))]
    said: list[tuple[int | None, str | None]] = [(1, "1"), *wrong, (3, None)]
    async with open_stream(ctx) as stream:
        for number, (priority, text) in enumerate(said):
            submit = stream.submitted(number, ctx.request(max_tokens=1, priority=priority))
            submit.metadata.update({PRIORITY: text} if text is not None else {})
            stream.send(submit)
        await stream.until_ended(*range(len(said)))
        behind = len(said) - 1
        for number, what in (
            (0, f"{PRIORITY} of a Submit"),
            (behind, f"a Submit behind others with {PRIORITY}"),
        ):
            status = stream.handle(number).status
            expect(not status, f"{what} is refused", expected="OK", seen=status)
        for number, (priority, text) in enumerate(wrong, 1):
            code = (stream.handle(number).status or pb.Status()).code
            message = f"{PRIORITY} {text!r} of a Submit was not refused beside a priority of {priority}"
            expect_equal(code, INVALID[0].value[0], message)


@check("MDT-06", needs=SHAPE)
async def ranks_are_served_or_refused(ctx: Context) -> None:
    """Each rank there is, and those beside them, by field and by key."""
    ranks = ranks_of(ctx.config)
    for rank in ranks:
        await ctx.generate(ctx.request(dp_rank=rank))
        await _with_metadata(ctx, ctx.request(), (RANK, str(rank)), is_good=True)
    for rank in {ranks.stop, UINT32_MAX, max(ranks.start - 1, 0)} - set(ranks):
        await ctx.rejects({"dp_rank": rank})
        await _with_metadata(ctx, ctx.request(), (RANK, str(rank)), is_good=False)


@negative("data_parallel")
async def other_ranks_are_refused(ctx: Context) -> None:
    """A rank that is not the first one."""
    await ctx.rejects({"dp_rank": ctx.config.data_parallel_start_rank + 1}, codes=REFUSALS)


def _calls(ctx: Context) -> list[tuple[str, Message]]:
    """A request for each RPC that is served and leaves the server as it was."""
    calls: list[tuple[str, Message]] = [
        *((GENERATE, request) for request in ctx.unlike(ctx.request, KINDS)),
        ("EngineService.Abort", pb.AbortRequest(request_ids=[f"{ctx.request().request_id}-unknown"])),
        ("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest()),
        ("DiscoveryService.GetLoad", pb.GetLoadRequest()),
        (health_types.CHECK, health_types.request(health_types.READINESS)),
    ]
    embedded = pb.PreprocessedEmbeddingRequest(token_ids=[pb.TokenSequence(token_ids=ctx.prompt(1))])
    embed = pb.EmbedRequest(request_id=ctx.request().request_id, request=embedded)
    gated: dict[str, tuple[str, Message]] = {
        "embeddings": ("EmbeddingService.Embed", embed),
        "watch_load": ("DiscoveryService.WatchLoad", pb.WatchLoadRequest()),
        "tokenizer": ("DiscoveryService.GetTokenizer", pb.GetTokenizerRequest()),
        "kv_events": ("KvService.GetKvEventSources", pb.GetKvEventSourcesRequest()),
        "lora": ("AdminService.ListAdapters", pb.ListAdaptersRequest()),
    }
    return calls + [call for name, call in gated.items() if getattr(ctx.capabilities, name)]


async def _with_metadata(
    ctx: Context, request: pb.GenerateRequest, entry: tuple[str, str], *, is_good: bool
) -> None:
    call = ctx.client.generate(request, metadata=(entry,), timeout=2 * ctx.bounds.answer)
    exchange = await call.finish()
    if is_good:
        message = f"{entry[0]} {entry[1]} is refused"
        expect(exchange.is_ok, message, expected="OK", seen=exchange.status)
    else:
        require_refusal(exchange, INVALID)
