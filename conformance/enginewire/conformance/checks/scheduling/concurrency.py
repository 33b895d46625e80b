"""CON: many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.invalid_requests import fails_later
from enginewire.conformance.session.saturation import MOST_SLOTS, queued, saturated
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.session.watching import until
from enginewire.conformance.wire.stopwatch import within
from enginewire.conformance.wire.stream import Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

PROMPTS: Final = 8
FEWEST: Final = 3
TOKENS: Final = 32
KINDS: Final = 5
CROWDING: Final = 48
"""Output tokens that keep a slot taken until the whole crowd is there."""

SHORT: Final = 4
OVERLOAD: Final = 4
"""Requests per slot, where there are few."""

SURPLUS: Final = 64
"""More requests than this behind the slots would show nothing new."""

BEHAVED: Final = 4
LOOKS: Final = 5

FREED: Final = ("ABO-05", "ABO-08", "CAN-01", "CAN-02", "CAN-02/queued", "CAN-03", "CAN-04")
"""A server that frees nothing in a small case is not judged once more in a large one."""

ALLOWED_TO_GO: Final = (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)


@check("CON-01", alone=True, needs=SHAPE)
async def two_make_progress(ctx: Context) -> None:
    """Each has its first token before the other one ends."""
    if ctx.config.max_num_seqs == 1:
        raise NotApplicable("max_num_seqs is 1")
    await _make_progress(ctx, [ctx.long_request(), ctx.long_request()])


@check("CON-01", variant="unlike", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "CON-01", "CAN-01"))
async def unlike_ones_make_progress(ctx: Context) -> None:
    """A plain request beside one with options, one after the other, and beside a probe."""
    slots = ctx.config.max_num_seqs or MOST_SLOTS
    for other in ctx.unlike(ctx.long_request, KINDS)[1:]:
        if max(1, other.request.sampling_options.n) < slots:
            await _make_progress(ctx, [ctx.long_request(), other])


async def _make_progress(ctx: Context, requests: Sequence[pb.GenerateRequest]) -> None:
    streams = [ctx.start(request) for request in requests]
    reading = [asyncio.ensure_future(stream.end()) for stream in streams]
    try:
        await _have_begun(ctx, streams)
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*reading)
    begun = [stream.exchange.arrived[0].at for stream in streams]
    ended = [stream.exchange.arrived[-1].at for stream in streams if stream.choice.terminal]
    expect(not ended or max(begun) < min(ended), "two requests run one after the other", expected="together")


@check("CON-02", phase=Phase.LOAD, alone=True, needs=SHAPE)
async def nobody_gets_anothers_tokens(ctx: Context) -> None:
    """Different prompts one by one, then all at once."""
    count = ctx.tokens(TOKENS)
    prompts = [ctx.prompt(salt=salt) for salt in range(ctx.times(PROMPTS, count, least=FEWEST))]
    requests = [ctx.request(token_ids=prompt, max_tokens=count) for prompt in prompts]
    alone = [(await ctx.generate(request)).tokens for request in requests]
    again = [ctx.request(token_ids=prompt, max_tokens=count) for prompt in prompts]
    streams = await asyncio.gather(*(ctx.generate(request) for request in again))
    compared = count if ctx.capabilities.batch_invariant else 1
    for expected, stream in zip(alone, streams, strict=True):
        message = f"the first {compared} tokens are others among {len(prompts)} requests than alone"
        expect_equal(stream.tokens[:compared], expected[:compared], message)


@check("CON-03", phase=Phase.LOAD, alone=True, needs=SHAPE)
async def the_surplus_waits_or_is_refused(ctx: Context) -> None:
    """Many more requests than slots, all at once."""
    count = ctx.tokens(CROWDING)
    requests = [ctx.request(max_tokens=count) for _ in range(_crowd(ctx))]
    longest = 2 * ctx.bounds.generation(OVERLOAD * count)
    started = [ctx.start(request, timeout=longest) for request in requests]
    for stream in await asyncio.gather(*(stream.end() for stream in started)):
        expect(
            stream.exchange.code in ALLOWED_TO_GO,
            "a request beyond the slots neither waited its turn nor was refused",
            expected="OK or RESOURCE_EXHAUSTED",
            seen=stream.exchange.status,
        )
    expect(any(stream.exchange.is_ok for stream in started), "not one of many requests was served")


@check(
    "CON-03",
    variant="choices",
    gate="multiple_choices",
    phase=Phase.LOAD,
    alone=True,
    needs=(*SHAPE, "CON-03", "SEQ-02"),
    not_beside=("n",),
)
async def many_choices_wait_or_are_refused(ctx: Context) -> None:
    """As many as there are slots, or as a request may have, behind one request and before another."""
    _slots(ctx)
    several = ctx.choices(ctx.config.max_num_seqs)
    if several < 2:
        raise NotApplicable("there is no room for two choices")
    longest = ctx.bounds.generation((several + 2) * SHORT)
    requests = [ctx.request(max_tokens=SHORT, n=count) for count in (1, several, 1)]
    started = [ctx.start(request, timeout=longest) for request in requests]
    for stream in await asyncio.gather(*(stream.end() for stream in started)):
        expect(
            stream.exchange.code in ALLOWED_TO_GO,
            f"a request neither had its turn nor was refused where one has {several} choices",
            expected="OK or RESOURCE_EXHAUSTED",
            seen=stream.exchange.status,
        )


@check(
    "CON-04",
    phase=Phase.LOAD,
    alone=True,
    needs=(*WHOLE, "ABO-01", "CAN-01", "CAN-03", "CON-01", "INF-08"),
)
async def failures_stay_alone(ctx: Context) -> None:
    """Invalid requests, one that fails while it runs, a cancelled one and one whose deadline passes.

    Beside good ones that outlast them.
    """
    good = [ctx.start(ctx.long_request(), timeout=2 * ctx.bounds.check) for _ in range(_beside(ctx))]
    await asyncio.gather(*(stream.first_token() for stream in good))
    # Read all the time: a server may end what nobody reads.
    reading = [asyncio.ensure_future(stream.end()) for stream in good]
    await asyncio.gather(_is_late(ctx), _is_cancelled(ctx), _are_refused(ctx))
    sequences = sum(num_choices(stream.request.request) for stream in good)
    await until(ctx, lambda load: load.running + load.waiting <= sequences, "a request that failed is held")
    await _goes_on(ctx, good, reading)
    # Its outcomes say which ones the server still had, whatever this machine has yet to read.
    aborted = await _aborted(ctx, good)
    await asyncio.gather(*reading)
    for stream in good:
        wanted = stream.request.request.stop_conditions.max_tokens
        is_whole = stream.exchange.is_ok and len(stream.tokens) == wanted
        expect(
            is_whole or stream.request.request_id in aborted,
            "the failure of another request cut a stream short",
            expected=f"{wanted} tokens, or ABORT_OUTCOME_ABORTED",
            seen=f"{len(stream.tokens)} tokens, {stream.exchange.status}",
        )


@check("CON-05", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "INF-08"))
async def control_is_never_blocked(ctx: Context) -> None:
    """Every slot taken, requests in the queue, and large prompts on their way."""
    # The stopwatch says what is late, not a deadline that a busy machine can miss as well.
    ctx.client.timeout = ctx.bounds.check
    async with saturated(ctx) as running:
        large = ctx.prompt(min(ctx.context_length() // 2, ctx.longest_prompt()))
        await queued(ctx, running)
        ctx.start(ctx.request(token_ids=large, max_tokens=1))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "GetLoad": ctx.client.load,
            "GetEngineInfo": ctx.client.info,
            "Abort": lambda: ctx.client.abort(["nobody"]),
            "health": ctx.client.health,
        }
        for _ in range(LOOKS):
            for name, call in calls.items():
                await _prompt(ctx, name, call)


@check("CON-06", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "CON-01"))
async def short_ones_overtake(ctx: Context) -> None:
    """A long request runs; a short one that begins later ends earlier."""
    if ctx.config.max_num_seqs == 1:
        raise NotApplicable("max_num_seqs is 1")
    long = await ctx.start(ctx.long_request()).first_token()
    reading = asyncio.ensure_future(long.end())
    short = ctx.start(ctx.request(max_tokens=SHORT))
    ending = asyncio.ensure_future(short.ok())
    await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED, timeout=ctx.bounds.answer)
    is_overtaken = ending.done()
    long.cancel()
    await asyncio.gather(reading, ending)
    waited = f"{ctx.bounds.answer:.1f} s or until the long one ended"
    expect(is_overtaken, "a short request waits for a long one", seen=f"it waited {waited}")


@check("CON-07", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FREED))
async def serves_after_any_load(ctx: Context) -> None:
    """More requests than slots: the first one fails, some finish, some are aborted, some cancelled."""
    failing = [ctx.start(request) for request in _fails_later(ctx)]
    kinds = [ctx.request if number % 3 == 0 else ctx.long_request for number in range(_crowd(ctx))]
    streams = [ctx.start(make()) for make in kinds]
    await streams[0].end()
    await _abort(ctx, streams[1::3])
    for stream in streams[2::3]:
        stream.cancel()
    await asyncio.gather(*(stream.end() for stream in (*failing, *streams)))
    await ctx.idle()
    stream = await ctx.generate(ctx.request(max_tokens=SHORT))
    expect_equal(len(stream.tokens), SHORT, "the first request after a load is not served in full")


async def _abort(ctx: Context, streams: list[Stream]) -> None:
    """One that a slow server has not read yet is unknown to it, and is aborted once more."""
    looks = Looks(ctx.bounds.reaction)
    while streams and not looks.are_over():
        results = await ctx.client.abort([stream.request.request_id for stream in streams])
        unknown = {each.request_id for each in results if each.outcome == pb.ABORT_OUTCOME_UNKNOWN}
        streams = [each for each in streams if each.request.request_id in unknown and not each.exchange.code]
        await pause()


async def _have_begun(ctx: Context, streams: list[Stream]) -> None:
    looks = Looks(ctx.bounds.answer)
    while not all(stream.exchange.arrived for stream in streams):
        seen = [len(stream.exchange.arrived) for stream in streams]
        if looks.are_over():
            raise Violation("one of two requests makes no progress", expected="both do", seen=seen)
        await pause()


async def _prompt(ctx: Context, name: str, call: Callable[[], Awaitable[object]]) -> None:
    bound = ctx.bounds.reaction
    try:
        await within(bound, call())
    except TimeoutError:
        message = f"{name} is slow while the engine is busy"
        raise Violation(message, expected=f"an answer within {bound:.1f} s") from None


def _beside(ctx: Context) -> int:
    """Good requests that leave a slot for one that fails, where there are two."""
    slots = ctx.config.max_num_seqs if ctx.config.HasField("max_num_seqs") else BEHAVED + 1
    return min(BEHAVED, max(slots - 1, 1))


async def _is_late(ctx: Context) -> None:
    """The caller is out of reach when the deadline passes: no other clock than the server's ends it."""
    proxy, client = await ctx.proxy()
    stream = ctx.start(ctx.long_request(), client=client, timeout=ctx.bounds.reaction / 2)
    await stream.call.accepted()
    proxy.black_hole()
    await stream.end()


async def _is_cancelled(ctx: Context) -> None:
    stream = ctx.start(ctx.long_request())
    # With one slot it has none.
    await (stream.call.accepted() if ctx.config.max_num_seqs == 1 else anext(stream.call, None))
    stream.cancel()
    await stream.end()


async def _are_refused(ctx: Context) -> None:
    outside = [ctx.config.vocab_size] if ctx.config.vocab_size else []
    bad: list[dict[str, object]] = [
        {"temperature": float("nan")},
        {"max_tokens": 0},
        {"token_ids": outside},
        {"request_id": ""},
    ]
    failing = [ctx.request(**change) for change in bad]
    # With one slot it would have its turn when the good one has ended.
    failing += _fails_later(ctx) if ctx.config.max_num_seqs != 1 else []
    await asyncio.gather(*map(ctx.refused, failing))


def _fails_later(ctx: Context) -> list[pb.GenerateRequest]:
    """One that fails while it runs, where the engine can be asked for it."""
    with suppress(NotApplicable):
        return [fails_later(ctx)]
    return []


async def _goes_on(ctx: Context, streams: list[Stream], reading: Sequence[asyncio.Future[Stream]]) -> None:
    """Wait until each has brought something more, or has ended."""
    before = [len(stream.exchange.arrived) for stream in streams]
    looks = Looks(ctx.bounds.reaction)
    for stream, count, task in zip(streams, before, reading, strict=True):
        while len(stream.exchange.arrived) == count and not task.done():
            if looks.are_over():
                raise Violation("a stream brings nothing more after another request failed")
            await pause()


async def _aborted(ctx: Context, streams: list[Stream]) -> set[str]:
    """Abort them; the ids of those that were alive until then."""
    results = await ctx.client.abort([stream.request.request_id for stream in streams])
    return {result.request_id for result in results if result.outcome == pb.ABORT_OUTCOME_ABORTED}


def _crowd(ctx: Context) -> int:
    """How many requests are too many for the slots."""
    slots = _slots(ctx)
    return min(OVERLOAD * slots, slots + SURPLUS)


def _slots(ctx: Context) -> int:
    if not ctx.config.HasField("max_num_seqs"):
        raise NotApplicable("EngineConfig.max_num_seqs is absent")
    slots = slots_of(ctx.config)
    if slots > MOST_SLOTS:
        raise NotApplicable(f"{slots} slots are more than the kit fills")
    return slots
