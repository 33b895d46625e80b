"""MUX: many requests over one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check, negative
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import LEFT_OUT, Context, require_refusal
from enginewire.conformance.session.invalid_requests import refusals
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.watching import freed
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import NARROW
from enginewire.conformance.wire.exchange import detail_of
from enginewire.conformance.wire.multiplexed import NAME, Handle, Multiplexed
from enginewire.conformance.wire.stream import Stream, reason_name
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

SEVERAL: Final = 4
LAGGING_TOKENS: Final = 256
LATER_TOKENS: Final = 8
LOOKS: Final = 5
"""Calls in a row: what was sent on another stream before them has come by then."""
FIRST: Final = "MUX-01"
SHORT: Final = 0.2
CUT: Final = frozenset({"CANCELLED", "ERROR"})
"""Ends of choices that have not ended by themselves."""

PLAIN: Final[tuple[dict[str, Value], ...]] = (
    {"max_tokens": 1},
    {"max_tokens": 24},
    {"max_tokens": 8, "stream_interval": 4},
)
WITH_LOGPROBS: Final[dict[str, Value]] = {"max_tokens": 8, "logprobs": 1}
WITH_CHOICES: Final[dict[str, Value]] = {"max_tokens": 8, "n": 2}
WITH_SEED: Final[dict[str, Value]] = {"max_tokens": 8, "seed": 7, "temperature": 1.0}


@check("MUX-01", needs=(*SHAPE, "USE-04", "SAM-01"), alone=True)
async def answers_are_those_of_generate(ctx: Context) -> None:
    """Several kinds of requests, one by one and together on one stream."""
    await _are_the_same(ctx, *PLAIN)


@check("MUX-01", variant="logprobs", gate="logprobs", needs=(FIRST, "LOG-01"), alone=True)
async def answers_with_logprobs_are_those_of_generate(ctx: Context) -> None:
    """Outputs that are no rows of a frame."""
    await _are_the_same(ctx, WITH_LOGPROBS, *PLAIN)


@check("MUX-01", variant="choices", gate="multiple_choices", needs=(FIRST, "SEQ-01", "SEQ-02"), alone=True)
async def choices_are_those_of_generate(ctx: Context) -> None:
    """Rows that name a choice."""
    if ctx.choices(2) < 2:
        raise NotApplicable("Limits.max_n is 1")
    await _are_the_same(ctx, WITH_CHOICES, *PLAIN)


@check("MUX-01", variant="seeded", gate="seed", needs=(FIRST, "SAM-04", "SAM-04/batch-invariant"), alone=True)
async def seeded_answers_are_those_of_generate(ctx: Context) -> None:
    """A temperature and a seed."""
    await _are_the_same(ctx, WITH_SEED, *PLAIN)


async def _are_the_same(ctx: Context, *wanted: dict[str, Value]) -> None:
    async with open_stream(ctx) as stream:
        wanted = tuple({**changes, "max_tokens": ctx.tokens(_most(changes))} for changes in wanted)
        alone = [await _by_generate(ctx, changes) for changes in wanted]
        for number, changes in enumerate(wanted):
            stream.submit(number, ctx.request(**changes))
        await stream.until_ended(*range(len(wanted)))
        for number, changes in enumerate(wanted):
            handle, what = stream.handle(number), f"of a multiplexed request with {sorted(changes)}"
            expect(
                handle.status is None, f"the status {what} is another one", expected="OK", seen=handle.status
            )
            for index, choice in alone[number].choices.items():
                mine = handle.by_choice.get(index)
                expect(mine, f"a choice {what} is missing", expected=index, seen=sorted(handle.by_choice))
                if mine:
                    expect_equal(mine.tokens, choice.tokens, f"the tokens {what} are others")
                    expect_equal(
                        mine.reason_name, choice.reason_name, f"the finish_reason {what} is another one"
                    )
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                theirs = getattr(alone[number].usage, name)
                expect_equal(getattr(handle.usage, name), theirs, f"{name} {what} are others")


async def _by_generate(ctx: Context, changes: dict[str, Value]) -> Stream:
    """What `Generate` answers, asked once for all who compare with it."""
    key = ("by Generate", *changes.items())
    stream = await ctx.once(key, lambda: ctx.generate(ctx.request(**changes)))
    ctx.show(stream.exchange)
    return stream


@check("MUX-02", needs=(*SHAPE, FIRST), alone=True)
async def handles_end_once(ctx: Context) -> None:
    """Until the whole stream has ended, nothing follows the end of a handle."""
    async with _several(ctx) as stream:
        await stream.until_ended(*range(SEVERAL))
        stream.half_close()
        await stream.finish()
        for number in range(SEVERAL):
            late = stream.handle(number).late
            expect(not late, "something of a handle came after its end", expected="nothing", seen=late[:1])


@check("MUX-03", needs=(*SHAPE, FIRST, "MUX-04"), alone=True)
async def acceptance_comes_once_and_first(ctx: Context) -> None:
    """For what is accepted, and never for what is refused."""
    async with _several(ctx) as stream:
        refused = ctx.request(model="no-such-model")
        stream.submit(SEVERAL, refused)
        await stream.until_ended(*range(SEVERAL + 1))
        for number in range(SEVERAL):
            handle = stream.handle(number)
            expect_equal(len(handle.accepted), 1, "a request was not accepted exactly once")
            expect(not handle.is_early, "an output came before the frame with Accepted")
            expect(handle.accepted[0].engine_lifetime_id, "Accepted names no life of the engine")
        request_ids = {handle.accepted[0].request_id for handle in (stream.handle(n) for n in range(SEVERAL))}
        expect_equal(len(request_ids), SEVERAL, "Accepted carries another request_id")
        accepted = stream.handle(SEVERAL).accepted
        expect(not accepted, "a request that is refused was accepted first", seen=accepted)


@check("MUX-04", needs=(*SHAPE, FIRST, "ERR-06"), alone=True)
async def rejections_are_events(ctx: Context) -> None:
    """A bad request between good ones, and whatever else Generate refuses."""
    # What is wrong with a message that is not there depends on who looked at it first.
    refused = [each for each in await refusals(ctx) if each.invalid.request.HasField("request")]
    async with _several(ctx) as stream:
        stream.submit(SEVERAL, ctx.request(model="no-such-model"))
        stream.submit(SEVERAL + 1, ctx.request())
        others = range(SEVERAL + 2, SEVERAL + 2 + len(refused))
        for number, each in zip(others, refused, strict=True):
            stream.submit(number, each.invalid.request)
        await stream.until_ended(*range(others.stop))
        status = stream.handle(SEVERAL).status or pb.Status()
        not_found = grpc.StatusCode.NOT_FOUND.value[0]
        expect_equal(status.code, not_found, "a rejection is no status event with the code of Generate")
        detail = pb.ErrorDetail()
        has_detail = any(entry.Unpack(detail) for entry in status.details)
        expect(has_detail and detail.reason, "the status of a handle has no ErrorDetail", seen=status)
        for number in (*range(SEVERAL), SEVERAL + 1):
            seen = stream.handle(number).status
            expect(not seen, "a rejection disturbed another handle", seen=seen)
        for number, each in zip(others, refused, strict=True):
            status, alone = stream.handle(number).status or pb.Status(), each.exchange.detail
            if alone and each.exchange.code:
                detail = detail_of(status) or pb.ErrorDetail()
                rejected = (status.code, detail.reason, detail.field)
                expected = (each.exchange.code.value[0], alone.reason, alone.field)
                message = f"the rejection of {each.invalid.wrong} has another code, reason or field"
                expect_equal(rejected, expected, message)


@check("MUX-08", needs=(*WHOLE, FIRST), alone=True)
async def half_closing_lets_requests_finish(ctx: Context) -> None:
    """Right after the submits; and a stream with no request at all."""
    async with _several(ctx) as stream:
        stream.half_close()
        exchange = await stream.finish()
        expect(
            exchange.is_ok, "a half-closed stream does not end with OK", expected="OK", seen=exchange.status
        )
        for number in range(SEVERAL):
            tokens = len(stream.handle(number).tokens)
            expect_equal(tokens, _tokens_of(ctx, number), "half-closing cut a request")
    async with open_stream(ctx) as empty:
        empty.half_close()
        exchange = await empty.finish()
        expect(exchange.is_ok, "a stream without requests does not end with OK", seen=exchange.status)


@check("MUX-09", needs=(*SHAPE, FIRST, "ABO-08", "CAN-01"), phase=Phase.LOAD, alone=True)
async def an_ended_stream_frees_its_requests(ctx: Context) -> None:
    """Cancelled while several requests run, and after it was half-closed."""
    for is_half_closed in (False, True):
        async with open_stream(ctx) as stream:
            requests = [ctx.long_request() for _ in range(SEVERAL)]
            for number, request in enumerate(requests):
                stream.submit(number, request)
            await stream.until(partial(_has_tokens, stream))
            if is_half_closed:
                stream.half_close()
                # The server is to see the one before the other.
                for _ in range(LOOKS):
                    await ctx.client.load()
            stream.call.cancel()
            await freed(ctx, requests)


def _has_tokens(stream: Multiplexed) -> bool:
    return bool(stream.handle(0).tokens)


@check("MUX-10", needs=(*WHOLE, FIRST), alone=True)
async def frames_are_in_order(ctx: Context) -> None:
    """Steps, columns, and the positions of every choice."""
    async with _several(ctx) as stream:
        await stream.until_ended(*range(SEVERAL))
        steps = [frame.step for frame in stream.frames]
        expect(steps == sorted(steps), "the step of a frame decreased", seen=steps[:64])
        for number in range(SEVERAL):
            _require_positions(stream.handle(number), _tokens_of(ctx, number))


@check("MUX-11", needs=(*WHOLE, FIRST, "MUX-01/choices"), phase=Phase.LOAD, alone=True)
async def a_slow_reader_loses_nothing(ctx: Context) -> None:
    """The server has finished before anybody reads on; of one request several choices.

    Then comes one whose first output is no row, where that is offered: all of it is sent together.
    """
    count = ctx.tokens(LAGGING_TOKENS)
    if ctx.limits.HasField("max_stream_buffer_tokens"):
        count = min(count, ctx.limits.max_stream_buffer_tokens // 2)
    several = ctx.choices(2)
    async with open_stream(ctx, ctx.connect(None, *NARROW)) as stream:
        tokens = (await ctx.generate(ctx.request(max_tokens=count))).tokens
        stream.submit(0, ctx.request(max_tokens=count))
        stream.submit(1, ctx.request(max_tokens=count, **({"n": several} if several > 1 else {})))
        await stream.until(lambda: bool(stream.handle(0).tokens))
        await _has_run(ctx)
        if ctx.capabilities.prompt_logprobs:
            stream.submit(2, ctx.request(max_tokens=min(count, LATER_TOKENS), prompt_logprobs=0))
            for _ in range(LOOKS):
                await pause()
                await ctx.client.load()
            await _has_run(ctx)
        await stream.until_ended(*stream.uses)
        for number in stream.uses:
            _require_positions(stream.handle(number), count if number < 2 else min(count, LATER_TOKENS))
        for number in range(2):
            for choice in stream.handle(number).by_choice.values():
                expect_equal(choice.tokens, tokens, "a reader that lagged got other tokens")


async def _has_run(ctx: Context) -> None:
    """Wait until nothing runs, though not for long: what runs on is read sooner."""
    looks = Looks(ctx.bounds.reaction)
    while (await ctx.client.load()).running and not looks.are_over():
        await pause()


@negative("multiplexed")
async def the_stream_is_refused(ctx: Context) -> None:
    """A stream with one request, sent with its half-close: a refusal may overtake what is sent later."""
    frame = pb.GenerateMultiplexedRequest(submits=[pb.Submit(handle=1, generate=ctx.request())])
    exchange = await ctx.client.ask(NAME, frame)
    require_refusal(exchange, LEFT_OUT)


@asynccontextmanager
async def open_stream(ctx: Context, client: Client | None = None) -> AsyncIterator[Multiplexed]:
    """A stream that is closed in the end, and of whose requests nothing is left."""
    stream = Multiplexed(client or ctx.client, ctx.bounds.check / 2, ctx.company.joined)
    try:
        yield stream
    finally:
        await stream.close()
        await ctx.end(stream.live)


@asynccontextmanager
async def _several(ctx: Context) -> AsyncIterator[Multiplexed]:
    """A stream with a few requests of different length, none of them ended."""
    async with open_stream(ctx) as stream:
        for number in range(SEVERAL):
            prompt = ctx.prompt(salt=number)
            stream.submit(number, ctx.request(max_tokens=_tokens_of(ctx, number), token_ids=prompt))
        yield stream


def _tokens_of(ctx: Context, number: int) -> int:
    """As many more for each handle as fit."""
    return (number + 1) * max(ctx.tokens(8 * SEVERAL) // SEVERAL, 1)


def _most(changes: dict[str, Value]) -> int:
    most = changes["max_tokens"]
    assert isinstance(most, int)
    return most


def ends_of(handle: Handle) -> list[str]:
    """How its choices have ended."""
    return [reason_name(output.finish_reason) for output in handle.terminals]


def is_cut(handle: Handle) -> bool:
    """Whether it has ended, and not by itself."""
    return handle.status is not None or not CUT.isdisjoint(ends_of(handle))


def require_cancelled(handle: Handle) -> None:
    """Each of its choices, or a Violation."""
    seen = ends_of(handle) or handle.status
    expect(
        seen == ["CANCELLED"] * handle.choices,
        "an aborted handle has another end",
        expected="CANCELLED",
        seen=seen,
    )


def _require_positions(handle: Handle, count: int) -> None:
    for index, choice in handle.by_choice.items():
        position = 0
        for output in choice.outputs:
            message = f"tokens of choice {index} are lost or out of order"
            expect_equal(output.first_output_position, position, message)
            position += len(output.token_ids)
        expect_equal(position, count, f"choice {index} has another number of tokens")
