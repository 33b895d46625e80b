"""ABO: aborting a request, and only that."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.capabilities.embeddings import embed
from enginewire.conformance.checks.streams.events import known_keys
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.context import (
    INVALID,
    LASTING_SECONDS,
    TAKEN,
    Context,
    require_refusal,
)
from enginewire.conformance.session.invalid_requests import fails_later
from enginewire.conformance.session.requests import LONG_REASON, Value
from enginewire.conformance.session.saturation import all_queued, saturated
from enginewire.conformance.session.watching import end_soon, until
from enginewire.conformance.wire.connection import ANY_METADATA
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.stream import Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

TENANT: Final = (("enginewire-tenant", "kit"),)
TIMES: Final = 10
LONGER: Final = (LASTING_SECONDS, 4 * LASTING_SECONDS, 16 * LASTING_SECONDS)
CYCLES: Final = 200
AT_A_TIME: Final = 8
CACHED: Final = 2
"""Blocks of a prompt that is found in the cache."""
MORE: Final = 4
GATHERED: Final = 16
"""Tokens of an output of those that are aborted between two of them."""

OVER: Final = (pb.ABORT_OUTCOME_FINISHED, pb.ABORT_OUTCOME_UNKNOWN)
"""What may be said of a request that ended: it is remembered, or already forgotten."""


@check("ABO-01", alone=True, needs=(*SHAPE, "STR-04", "STR-09", "SEQ-01", "SEQ-02"))
async def choices_end_as_cancelled(ctx: Context) -> None:
    """After the first token, with two choices where the engine has several, and whoever it is for."""
    count = ctx.choices(2)
    stream = await ctx.start(ctx.long_request(n=count), metadata=TENANT).first_token()
    await _abort(ctx, stream)
    await _ends_as_cancelled(stream, count)


@check("ABO-01", variant="multiplexed", gate="multiplexed", alone=True, needs=("ABO-01", "MUX-01"))
async def handles_end_as_cancelled(ctx: Context) -> None:
    """By the id of their request, which came over a stream of many."""
    async with open_stream(ctx) as stream:
        request = ctx.long_request()
        stream.submit(1, request)
        await stream.until(lambda: bool(stream.handle(1).tokens) or stream.handle(1).has_ended)
        (result,) = _complete(await ctx.client.abort([request.request_id]), [request.request_id])
        if result.outcome == pb.ABORT_OUTCOME_FINISHED:
            raise NotApplicable("the longest request ends before it can be aborted")
        message = "a live request of a multiplexed stream was not aborted"
        expect_equal(_name(result), "ABORT_OUTCOME_ABORTED", message)
        await stream.until_ended(1, within=2 * ctx.bounds.answer)
        reasons = {choice.reason_name for choice in stream.handle(1).by_choice.values()}
        expect_equal(reasons, {"CANCELLED"}, "an aborted handle ends with another reason")


@check("ABO-02", phase=Phase.LOAD, alone=True, needs=(*WHOLE, "ABO-01", "CON-01"))
async def others_go_on(ctx: Context) -> None:
    """Among them ids that begin like the aborted one, or differ in case only."""
    await _others_go_on(ctx, lambda name: (f"{name}-1", name.upper(), name[:-1], ctx.request().request_id))


@check("ABO-02", variant="parts", phase=Phase.LOAD, alone=True, needs=(*WHOLE, "ABO-02"))
async def others_that_look_like_parts_go_on(ctx: Context) -> None:
    """Ids that go on with what separates the parts of names."""
    await _others_go_on(ctx, lambda name: (f"{name}.1", f"{name}:1", f"{name}_1", f"{name}."))


@check("ABO-03", phase=Phase.LOAD)
async def unknown_is_an_outcome(ctx: Context) -> None:
    """A random id."""
    name = f"never-seen-{secrets.token_hex(8)}"
    (result,) = _complete(await ctx.client.abort([name]), [name])
    expect_equal(_name(result), "ABORT_OUTCOME_UNKNOWN", "an id that was never seen has another outcome")


@check("ABO-04", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "ABO-01"))
async def may_be_repeated(ctx: Context) -> None:
    """Ten times on a live request and after its end, after a natural end, and several ids in one call.

    The live one comes last: no other ends the list.
    """
    finished = await ctx.generate(ctx.request())
    aborted = await ctx.start(ctx.long_request()).first_token()
    names = ["never-seen", "never-seen", finished.request.request_id, aborted.request.request_id]
    *_, last = _complete(await ctx.client.abort(names), names)
    message = "a live request behind others in a list was not aborted"
    expect(last.outcome != pb.ABORT_OUTCOME_UNKNOWN, message, seen=_name(last))
    await aborted.end()
    for _ in range(TIMES):
        for result in _complete(await ctx.client.abort(names), names)[2:]:
            expect(result.outcome in OVER, "a request that ended is aborted once more", seen=_name(result))


@check("ABO-05", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "ABO-01", "ABO-02", "INF-08"))
async def reaches_the_queue(ctx: Context) -> None:
    """Requests of several kinds while all slots are taken; nothing is left of them when these are free.

    Events that they ask for may be due when they end.
    """
    make = partial(ctx.long_request, annotations=known_keys(ctx))
    async with saturated(ctx) as running:
        for waiting in await all_queued(ctx, running, make):
            await _abort(ctx, waiting)
            await end_soon(ctx, [waiting], "a request that was aborted in the queue does not end")
            await _ends_as_cancelled(waiting, num_choices(waiting.request.request))
    await ctx.idle()


@check("ABO-05", variant="all", phase=Phase.DESTRUCTIVE, needs=(*WHOLE, "ABO-05", "INF-08"))
async def all_of_them_are_those_who_wait_too(ctx: Context) -> None:
    """Everything is aborted at once while some requests run and others wait for their slots."""
    async with saturated(ctx) as running:
        waiting = await all_queued(ctx, running, ctx.long_request)
        await ctx.client.ask("EngineService.Abort", pb.AbortRequest(all=True))
        await end_soon(ctx, waiting, "an abort of all does not reach the queue")
        for stream in waiting:
            await _ends_as_cancelled(stream, num_choices(stream.request.request))


@check("ABO-06", phase=Phase.LOAD, alone=True, needs=WHOLE)
async def live_ids_are_taken(ctx: Context) -> None:
    """A second request and a third one, one to embed as well, then another one after the end of the first."""
    for seconds in LONGER:
        first = await ctx.start(ctx.lasting_request(seconds)).first_token()
        same = ctx.request(request_id=first.request.request_id)
        # Whoever forgets the first one with the second lets a third one in.
        exchanges = [exchange async for exchange in _again(ctx, same)]
        has_ended = not (await ctx.client.load()).running
        await _ends_as_it_should(first)
        if exchanges[-1].is_ok and has_ended:
            continue  # a busy machine may have brought the second one when the first was over
        for exchange in exchanges:
            require_refusal(exchange, TAKEN, reason=pb.ERROR_REASON_DUPLICATE_ID)
        await ctx.generate(same)
        return
    raise NotApplicable("a request ends before its id can be used again")


async def _again(ctx: Context, same: pb.GenerateRequest) -> AsyncIterator[Exchange]:
    """An id by each RPC that takes one, until it is served."""
    yield (served := await ctx.refused(same))
    if not served.is_ok:
        yield (served := await ctx.refused(same))
    if not served.is_ok and ctx.capabilities.embeddings:
        yield await embed(ctx, [ctx.prompt(1)], name=same.request_id)


@check(
    "ABO-06", variant="aborted", phase=Phase.LOAD, alone=True, needs=(*WHOLE, "ABO-01", "ABO-04", "ABO-06")
)
async def aborted_ids_are_free(ctx: Context) -> None:
    """The id of a request that was aborted: one more is served, another one aborted, also too late."""
    first = await ctx.start(ctx.long_request()).first_token()
    name = first.request.request_id
    await _abort(ctx, first)
    await _ends_as_cancelled(first, 1)
    await _ends_as_it_should(ctx.start(ctx.request(request_id=name)))
    again = await ctx.start(ctx.long_request(request_id=name)).first_token()
    (result,) = _complete(await ctx.client.abort([name]), [name])
    if result.outcome == pb.ABORT_OUTCOME_FINISHED and not (await ctx.client.load()).running:
        raise NotApplicable("the longest request ends before it can be aborted")
    message = "a request was not aborted whose id had been used before"
    expect_equal(_name(result), "ABORT_OUTCOME_ABORTED", message)
    await _ends_as_cancelled(again, 1)
    (late,) = _complete(await ctx.client.abort([name]), [name])
    # Whoever has forgotten it may take the abort for one that comes before its request.
    if late.outcome == pb.ABORT_OUTCOME_FINISHED:
        await _ends_as_it_should(ctx.start(ctx.request(request_id=name)))


@check(
    "ABO-06",
    variant="late",
    phase=Phase.LOAD,
    alone=True,
    needs=(*WHOLE, "ABO-06", "ABO-05", "CAN-03", "CAN-03/queued"),
)
async def late_ids_are_free(ctx: Context) -> None:
    """Those of requests whose deadline passed: of one that ran, and of some that waited.

    And that of one that failed after its first token.
    """
    failed = []
    with suppress(NotApplicable):
        failed.append(await ctx.start(fails_later(ctx)).end())
    late = [await ctx.start(ctx.long_request(), timeout=ctx.bounds.reaction / 4).end()]
    async with saturated(ctx) as running:
        late += await all_queued(ctx, running, ctx.long_request, timeout=ctx.bounds.reaction / 2)
        await asyncio.gather(*(stream.end() for stream in late))
    await ctx.idle()
    for stream in (*failed, *late):
        again = ctx.start(ctx.request(request_id=stream.request.request_id))
        await _ends_as_it_should(again)


@check("ABO-07", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "ABO-01", "USE-01", "USE-05"))
async def nothing_follows_the_end(ctx: Context) -> None:
    """The tokens before it are those of the usage, also where some are gathered for the next output."""
    for interval in (None, GATHERED):
        before = (await ctx.client.load()).tokens_generated
        stream = await ctx.start(ctx.long_request(stream_interval=interval)).more(MORE)
        if interval:
            await _gathers(ctx, stream, before)
        await _abort(ctx, stream)
        await stream.end()
        choices = stream.choices.values()
        late = [token for choice in choices for output in choice.late for token in output.token_ids]
        expect(not late, "tokens follow the terminal CANCELLED", expected="none", seen=len(late))
        counted, tokens = stream.usage.completion_tokens, sum(len(choice.tokens) for choice in choices)
        message = "the tokens before the terminal CANCELLED are not those that are counted"
        expect_equal(counted, tokens, message)


async def _gathers(ctx: Context, stream: Stream, before: int) -> None:
    """Wait until more tokens are generated than came, where the load tells it."""
    came = before + sum(len(choice.tokens) for choice in stream.choices.values())

    def is_ahead(load: pb.Load) -> bool:
        return load.tokens_generated > came or not (load.running and load.tokens_generated)

    with suppress(Violation):
        await until(ctx, is_ahead, "")


@check("ABO-08", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "ABO-01", "ABO-02"))
async def no_block_is_lost(ctx: Context) -> None:
    """Two hundred requests, or as many as there is time for, aborted when accepted or after a token.

    Some of them begin with blocks that are cached.
    """
    times = ctx.times(CYCLES // AT_A_TIME, least=2)
    cached = ctx.fresh_prompt(CACHED)

    async def cycles() -> None:
        for number in range(times):
            changes: dict[str, Value] = {"token_ids": cached} if number % 4 > 1 else {}
            stream = ctx.start(ctx.long_request(**changes))
            await (stream.first_token() if number % 2 else stream.accepted())
            await ctx.client.abort([stream.request.request_id])
            await stream.end()

    await asyncio.gather(*(cycles() for _ in range(AT_A_TIME)))
    await ctx.idle()


@check("ABO-09", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "ABO-01"))
async def one_of_both_is_named(ctx: Context) -> None:
    """Neither, then both, while a request runs."""
    stream = await ctx.start(ctx.lasting_request()).first_token()
    for asked in (pb.AbortRequest(), pb.AbortRequest(request_ids=[stream.request.request_id], all=True)):
        require_refusal(await ctx.client.ask("EngineService.Abort", asked), INVALID)
    await _ends_as_it_should(stream)


@check("ABO-10", phase=Phase.LOAD, needs=(*SHAPE, "LIM-04", "ABO-03"), not_beside=("request_id",))
async def what_was_refused_is_unknown(ctx: Context) -> None:
    """A request without tokens to generate; one whose abort came before it, where that is remembered."""
    early = ctx.request()
    await ctx.client.abort([early.request_id])
    for request in (early, ctx.request(max_tokens=0)):
        if (await ctx.refused(request)).is_ok:
            continue
        (result,) = _complete(await ctx.client.abort([request.request_id]), [request.request_id])
        expect_equal(_name(result), "ABORT_OUTCOME_UNKNOWN", "a request that was refused has another outcome")


@check("ABO-11", phase=Phase.LOAD, needs=(*SHAPE, "ABO-03"), not_beside=("request_id",))
async def an_abort_may_come_first(ctx: Context) -> None:
    """An abort, for a reason that is longer than a status may be, then the request that it names."""
    request = ctx.request()
    _complete(await ctx.client.abort([request.request_id], LONG_REASON), [request.request_id])
    refused = await ctx.start(request, client=ctx.connect(None, *ANY_METADATA)).end()
    cancelled = (grpc.StatusCode.CANCELLED,)
    require_refusal(refused.exchange, cancelled, reason=pb.ERROR_REASON_CANCELLED)


async def _abort(ctx: Context, stream: Stream) -> None:
    """Abort a live request; NotApplicable when it ended by itself just before."""
    name = stream.request.request_id
    (result,) = _complete(await ctx.client.abort([name], LONG_REASON), [name])
    if result.outcome == pb.ABORT_OUTCOME_FINISHED:
        await stream.end()
        if stream.choice.reason_name == "LENGTH":
            raise NotApplicable("the longest request ends before it can be aborted")
    expect_equal(_name(result), "ABORT_OUTCOME_ABORTED", "a live request was not aborted")


async def _ends_as_cancelled(stream: Stream, count: int) -> None:
    """Every choice has its terminal CANCELLED, and the status is OK."""
    await stream.ok()
    for index in range(count):
        choice = stream.choices.get(index)
        expect(choice, f"the aborted choice {index} has no terminal output")
        reason = choice.reason_name if choice else ""
        expect_equal(reason, "CANCELLED", f"the aborted choice {index} ends with another reason")


async def _others_go_on(ctx: Context, named_like: Callable[[str], Iterable[str]]) -> None:
    named = ctx.long_request()
    names = named_like(named.request_id)
    others = [ctx.start(ctx.lasting_request(request_id=other)) for other in names]
    stream = ctx.start(named)
    await asyncio.gather(*(each.first_token() for each in (stream, *others)))
    await _abort(ctx, stream)
    await stream.end()
    for other in others:
        await _ends_as_it_should(other)


async def _ends_as_it_should(stream: Stream) -> None:
    """A request that nobody named brings all its tokens."""
    await stream.end()
    seen = f"{len(stream.tokens)} tokens, {stream.choice.reason_name}, {stream.exchange.status}"
    wanted = stream.request.request.stop_conditions.max_tokens
    is_whole = len(stream.tokens) == wanted and stream.choice.reason_name == "LENGTH"
    message = "a request that nobody named did not go on"
    expect(is_whole and stream.exchange.is_ok, message, expected=f"{wanted} tokens, LENGTH, OK", seen=seen)


def _complete(results: list[pb.AbortResult], names: list[str]) -> list[pb.AbortResult]:
    """The results, of which there is one per id, in order."""
    expect_equal([result.request_id for result in results], names, "Abort does not answer for each id")
    return results


def _name(result: pb.AbortResult) -> str:
    return pb.AbortOutcome.Name(result.outcome)
