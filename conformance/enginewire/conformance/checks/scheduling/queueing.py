"""INF-13, and ABO-06 for a request that waits."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.capabilities.embeddings import embed
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import TAKEN, Context, require_refusal
from enginewire.conformance.session.requests import change
from enginewire.conformance.session.saturation import all_queued, saturated, waits
from enginewire.conformance.session.watching import all_counted, left_the_queue
from enginewire.conformance.wire.exchange import Exchange, detail_of
from enginewire.conformance.wire.multiplexed import Handle
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

PROMPT: Final = 21
ANSWER: Final = 8
SHORT: Final = 0.05
"""Seconds that a request waits at most."""
LOOKS: Final = 5
INPUTS: Final = 5
"""Of a request to embed: more than a small engine has slots."""
STEPS: Final = 4
"""Of an engine, within which it uses a slot that is free, and counts who has one."""
ACCEPTED: Final = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
"""How a request ends that was let in, and aborted."""
FULL: Final = ("INF-08", "ABO-05")
"""What whoever fills the slots relies on."""


@check("INF-13", alone=True, needs=(*WHOLE, "ABO-01"))
async def counters_count(ctx: Context) -> None:
    """Requests that end by themselves, one aborted, one to embed; what is never counted stays at 0.

    Two of them are probes: one that ends by itself, and the one that is aborted.
    """
    before = await all_counted(ctx)
    count = ctx.choices(2)
    streams = [await ctx.generate(ctx.request(n=each)) for each in {1, count}]
    streams.append(await ctx.generate(ctx.request(is_probe=True)))
    probe = await ctx.start(ctx.long_request(is_probe=True)).first_token()
    streams.append(probe)
    running = (await ctx.client.load()).running
    await ctx.client.abort([probe.request.request_id])
    await probe.end()
    if probe.choice.reason_name == "CANCELLED":
        expect(running, "Load.running does not count a probe", seen=running)
    if ctx.capabilities.embeddings:
        (await embed(ctx, [ctx.prompt()])).response()
    await ctx.refused(ctx.request(max_tokens=0))
    after = await all_counted(ctx)
    sent = sum(len(choice.tokens) for stream in streams for choice in stream.choices.values())
    if after.requests_finished:
        ended = after.requests_finished - before.requests_finished
        due = len(streams) + ctx.capabilities.embeddings
        expect_equal(ended, due, "Load.requests_finished is not the number of requests that ended")
    if after.tokens_generated:
        generated = after.tokens_generated - before.tokens_generated
        message = "Load.tokens_generated counts fewer tokens than were sent"
        expect(generated >= sent, message, expected=f"at least {sent}", seen=generated)
    for name in ("step", "preemptions"):
        least, seen = getattr(before, name), getattr(after, name)
        expect(seen >= least, f"Load.{name} went back", expected=f"at least {least}", seen=seen)


@check("INF-13", variant="waiting", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL))
async def waiting_requests_are_counted(ctx: Context) -> None:
    """One of several choices is one request, and its prompt waits once; cancelled, it has ended.

    So has one of a stream whose time is over before it had a token. One to embed is a single one as well,
    however many inputs it has, and so has it ended when it is aborted. One of which a choice runs does not
    wait, though another choice does.
    """
    idle = await all_counted(ctx)
    async with saturated(ctx) as running:
        before = await ctx.client.load()
        several = {"n": 2} if ctx.choices(2) > 1 else {}
        waiting = ctx.start(ctx.long_request(token_ids=ctx.prompt(PROMPT), **several))
        load = await waits(ctx, len(running), before.waiting + 1)
        # An engine may count the tokens with its next step.
        looks = Looks(ctx.bounds.reaction)
        while 0 < load.waiting_tokens <= before.waiting_tokens and not looks.are_over():
            await pause()
            load = await waits(ctx, len(running), before.waiting + 1)
        waiting.cancel()
        await left_the_queue(ctx, len(running), before.waiting, "a cancelled request goes on waiting")
        late = await _too_late(ctx)
        embedding, of_embedding = await _waits_to_embed(ctx, len(running))
        late += await _runs_by_halves(ctx, running, before)
    late += embedding is not None and (await embedding).code in ACCEPTED
    if finished := (await all_counted(ctx)).requests_finished:
        ended, message = finished - idle.requests_finished, "Load.requests_finished leaves out who waited"
        expect_equal(ended, len(running) + 1 + late, message)
    expect_equal(load.waiting - before.waiting, 1, "Load.waiting does not count the requests that wait")
    expect(of_embedding <= 1, "a request to embed counts as several that wait", expected=1, seen=of_embedding)
    if load.waiting_tokens:
        tokens, prompt = load.waiting_tokens - before.waiting_tokens, len(waiting.request.request.token_ids)
        expect_equal(tokens, prompt, "Load.waiting_tokens does not count the prompts that wait")


async def _waits_to_embed(ctx: Context, running: int) -> tuple[asyncio.Future[Exchange] | None, int]:
    """A request to embed that comes while all slots are taken, soon aborted; as how many it waited at most.

    Some engines need no slot for it, or count nobody before their next step.
    """
    if not ctx.capabilities.embeddings:
        return None, 0
    before, name = await ctx.client.load(), ctx.request().request_id
    inputs = [ctx.prompt(1, salt=salt) for salt in range(INPUTS)]
    embedding, most = asyncio.ensure_future(embed(ctx, inputs, name=name)), 0
    looks = Looks(ctx.bounds.reaction)
    due = LOOKS
    while due and not embedding.done() and not looks.are_over():
        load = await ctx.client.load()
        if load.running < running:
            break
        most = max(most, load.waiting - before.waiting)
        due -= most > 0
        await pause()
    await ctx.end([name])
    return embedding, most


async def _runs_by_halves(ctx: Context, running: list[Stream], before: pb.Load) -> bool:
    """One slot gets free for a request of two choices; whether that was accepted. `before`: nobody waited.

    An engine may start its choices one by one, or all together once there is room. Together they need no more
    memory than the one that ends.
    """
    if ctx.choices(2) < 2:
        return False
    request = ctx.long_request(n=2)
    half = request.request.stop_conditions.max_tokens // 2 - len(request.request.token_ids)
    stream = ctx.start(change(request, max_tokens=max(half, 1)))
    reading = asyncio.ensure_future(stream.end())
    await stream.call.accepted()
    await ctx.client.abort([running[0].request.request_id])
    has_begun = await _has_begun(ctx, len(running), stream, reading)
    since, looks = (await ctx.client.load()).step, Looks(ctx.bounds.reaction)
    while (load := await ctx.client.load()).waiting > before.waiting and has_begun:
        if reading.done() or load.step - since > STEPS or looks.are_over():
            break
        await pause()
    is_alive = not reading.done()
    await ctx.end([request.request_id])
    await reading
    # Who gave up its memory meanwhile waits by rights.
    if has_begun and is_alive and load.preemptions == before.preemptions:
        message = "a request counts as one that waits while a choice of it runs"
        expect(load.waiting <= before.waiting, message, expected=before.waiting, seen=load.waiting)
    return stream.exchange.code in ACCEPTED


async def _has_begun(ctx: Context, slots: int, stream: Stream, reading: asyncio.Future[Stream]) -> bool:
    """Whether it has an output before a slot stays free for some steps, which are counted or take so long."""
    looks, steps, since = Looks(ctx.bounds.reaction), Looks(STEPS * ctx.bounds.itl), -1
    while not (stream.outputs or reading.done() or looks.are_over()):
        load = await ctx.client.load()
        if load.running >= slots:
            since = -1
        elif since < 0:
            since = load.step
        elif load.step - since > STEPS if load.step else steps.are_over():
            break
        await pause()
    return bool(stream.outputs)


async def _too_late(ctx: Context) -> int:
    """A request of a stream whose timeout passes while it waits; 0 where none is accepted."""
    if not ctx.capabilities.multiplexed:
        return 0
    async with open_stream(ctx) as stream:
        stream.submit(1, ctx.long_request(), timeout=SHORT)
        await stream.until_ended(1)
        return len(stream.handle(1).accepted)


@check("ABO-06", variant="queued", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "ABO-06"))
async def waiting_ids_are_taken(ctx: Context) -> None:
    """A second request while the first one waits, and the first one is there to be aborted."""
    async with saturated(ctx) as running:
        waiting = await all_queued(ctx, running, ctx.long_request)
        names = [stream.request.request_id for stream in waiting]
        for name in names:
            exchange = await ctx.refused(ctx.request(request_id=name, max_tokens=1))
            if exchange.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise NotApplicable("the queue is full before its ids are looked at")
            require_refusal(exchange, TAKEN, reason=pb.ERROR_REASON_DUPLICATE_ID)
        results = await ctx.client.abort(names)
        await asyncio.gather(*(stream.end() for stream in waiting))
    for result in results:
        outcome, message = pb.AbortOutcome.Name(result.outcome), "a request was lost when its id was refused"
        expect_equal(outcome, "ABORT_OUTCOME_ABORTED", f"{message} to another one")


@check(
    "ABO-06",
    variant="multiplexed",
    gate="multiplexed",
    phase=Phase.LOAD,
    alone=True,
    needs=(*SHAPE, "ABO-02", "ABO-06", "MUX-01", "MUX-04", "ABO-01/multiplexed"),
)
async def ids_are_taken_on_all_ways(ctx: Context) -> None:
    """By a call for streams, by a stream for calls, and by one handle for another."""
    async with open_stream(ctx) as stream:
        called, submitted = await ctx.start(ctx.long_request()).first_token(), ctx.long_request()
        stream.submit(1, submitted)
        await stream.until(lambda: bool(stream.handle(1).tokens))
        for number, request in enumerate((called.request, submitted), 2):
            stream.submit(number, ctx.request(request_id=request.request_id))
        await stream.until_ended(2, 3)
        are_running = (await ctx.client.load()).running >= 2
        exchange = await ctx.refused(ctx.request(request_id=submitted.request_id)) if are_running else None
        results = await ctx.client.abort([called.request.request_id, submitted.request_id])
        message = "a request cannot be aborted after its id was refused to another one"
        lost = any(result.outcome == pb.ABORT_OUTCOME_UNKNOWN for result in results)
        expect(not lost, message, expected="ABORT_OUTCOME_ABORTED", seen="ABORT_OUTCOME_UNKNOWN")
        await called.end()
        await stream.until_ended(1)
    for result, outputs in zip(results, (called.terminals, stream.handle(1).terminals), strict=True):
        is_cut = any(output.finish_reason == pb.FINISH_REASON_CANCELLED for output in outputs)
        was_live = result.outcome == pb.ABORT_OUTCOME_ABORTED
        expect(was_live or not is_cut, "a request is ended when its id is refused to another one")
    if exchange is None:
        raise NotApplicable("the longest request ends before its id can be used again")
    for number in (2, 3):
        _require_taken(stream.handle(number))
    require_refusal(exchange, TAKEN, reason=pb.ERROR_REASON_DUPLICATE_ID)


def _require_taken(handle: Handle) -> None:
    status = handle.status or pb.Status()
    detail = detail_of(status) or pb.ErrorDetail()
    seen = (status.code, pb.ErrorReason.Name(detail.reason))
    expected = (TAKEN[0].value[0], "ERROR_REASON_DUPLICATE_ID")
    expect_equal(seen, expected, "an id that is live was not refused to a request of a stream")
