"""Fills the slots of a target, so that the next request has to wait, or its memory. Knows no requirement."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import LEFT, Context
from enginewire.conformance.session.requests import change
from enginewire.conformance.session.sizes import ranks_of, slots_of
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation

MOST_SLOTS: Final = 256
"""More streams than this would test the kit's machine."""

KINDS: Final = 3
"""Requests that wait together: a plain one, and two that have every option between them, the last a probe."""

MORE: Final = 0.1
"""Of the reaction bound: so long to see one more request that lives."""

PER_CONNECTION: Final = 96
"""Calls that every server takes from one connection: many stop at a hundred."""

MOST_PLACES: Final = 2**14
"""Tokens of a KV cache that the kit fills; a larger one takes too long."""
MOST_REQUESTS: Final = 16
BEGUN, ENDED = 0.9, 1.25
"""Of the memory: what the prompts of all requests need, and what they need with all their tokens."""
SMALL: Final = 3
"""Blocks of the prompt of several choices."""
UNHURT: Final = "no request had to give up its memory"


@asynccontextmanager
async def saturated(ctx: Context, slots: int = 0) -> AsyncIterator[list[Stream]]:
    """As many long requests as there are slots, all running; at the end they are cancelled, and aborted for
    engines that go on without a caller: whether they do is not what is judged here.

    A fast engine may have ended some of them by the time the body looks: `max_tokens` ends at the
    window. NotApplicable where the number of slots is not said.
    """
    if not (slots or ctx.config.HasField("max_num_seqs")):
        raise NotApplicable("EngineConfig.max_num_seqs is absent")
    count, ranks = slots or slots_of(ctx.config), ranks_of(ctx.config)
    if count > MOST_SLOTS:
        raise NotApplicable(f"{count} slots are more than the kit fills")
    started = time.monotonic()
    clients = [ctx.client, *(ctx.connect() for _ in range((count - 1) // PER_CONNECTION))]
    # How an engine spreads requests over its ranks is its own business.
    spread = [{"dp_rank": rank} if ctx.capabilities.data_parallel else {} for rank in ranks]
    streams = [
        ctx.start(ctx.long_request(**spread[number % len(spread)]), client=clients[number // PER_CONNECTION])
        for number in range(count)
    ]
    try:
        await asyncio.gather(*(stream.accepted() for stream in streams))
        await _filled(ctx, streams, started)
        yield streams
    finally:
        alive = [stream.request.request_id for stream in streams if stream.exchange.code in LEFT]
        for stream in streams:
            stream.cancel()
        await ctx.end(alive)


async def queued(
    ctx: Context,
    running: list[Stream],
    request: pb.GenerateRequest | None = None,
    *,
    client: Client | None = None,
    timeout: float = 0,
    metadata: Metadata = (),
    is_multiplexed: bool = False,
) -> Stream:
    """A request that waits, seen in the load, while the slots are taken: a long one if none is given."""
    before = (await ctx.client.load()).waiting
    stream = ctx.start(
        request or ctx.long_request(),
        client=client,
        timeout=timeout,
        metadata=metadata,
        is_multiplexed=is_multiplexed,
    )
    try:
        await _seen_to_wait(ctx, running, stream, before, timeout)
    except NotApplicable:
        stream.cancel()
        raise
    return stream


async def all_queued(
    ctx: Context,
    running: list[Stream],
    make: Callable[[], pb.GenerateRequest],
    *,
    client: Client | None = None,
    timeout: float = 0,
) -> list[Stream]:
    """Requests of all kinds that wait together: as many as there is room for, at least one."""
    waiting = list[Stream]()
    for request in kinds(ctx, make):
        try:
            waiting.append(await queued(ctx, running, request, client=client, timeout=timeout))
        except NotApplicable:
            if not waiting:
                raise
            break
    return waiting


def kinds(ctx: Context, make: Callable[[], pb.GenerateRequest]) -> list[pb.GenerateRequest]:
    """A plain request and some with drawn options, as many as may wait at the same time.

    None is more urgent than what runs: an engine may take a slot from somebody for such a one.
    """
    bounded = ctx.limits.HasField("max_num_queued_reqs")
    count = min(KINDS, max(ctx.limits.max_num_queued_reqs, 1)) if bounded else KINDS
    return [change(request, priority=None) for request in ctx.unlike(make, count)]


async def waits(ctx: Context, running: int, count: int) -> pb.Load:
    """The first load in which so many wait; NotApplicable when slots are free before."""
    while (load := await ctx.client.load()).waiting < count:
        if load.running < running:
            raise NotApplicable("the slots are free again before a request can be seen to wait")
    return load


async def _seen_to_wait(
    ctx: Context, running: list[Stream], stream: Stream, before: int, timeout: float
) -> None:
    """Wait until one more request waits than `before`."""
    accepted = asyncio.ensure_future(stream.call.accepted())
    looks = Looks(ctx.bounds.reaction)
    while not looks.are_over():
        load = await ctx.client.load()
        if load.waiting > before:
            return
        if load.running < len(running):
            raise NotApplicable("the slots are free again before a request can be seen to wait")
        if timeout and time.monotonic() > stream.exchange.started_at + timeout:
            raise NotApplicable("a deadline passes before its request can be seen to wait")
        # A server may send its metadata with the refusal: that it came says nothing yet.
        if (accepted.done() and not accepted.result()) or await stream.call.failed_unread():
            raise NotApplicable("a request that has to wait is refused here")
        await pause()
    raise Violation("Load.waiting is 0 while a request waits for a slot", expected="1")


async def _filled(ctx: Context, streams: list[Stream], started: float) -> None:
    """Wait until all slots are taken and nobody waits, or until it is clear that they do not stay so.

    While one of them waits beside full slots, somebody holds a slot who was cancelled and has not gone yet.
    Slots do not stay taken when the first requests must have ended by now, and no more are seen to live.
    """
    long = streams[0].request.request.stop_conditions.max_tokens
    end = started + long * ctx.bounds.least_itl
    most, deadline = 0, time.monotonic() + ctx.bounds.reaction
    more = time.monotonic() + MORE * ctx.bounds.reaction
    while time.monotonic() < min(deadline, max(end, more)):
        load = await ctx.client.load()
        if load.running >= len(streams) and not load.waiting:
            return
        live = load.running + load.waiting
        if live > most or live >= len(streams):
            most = live
            more = time.monotonic() + MORE * ctx.bounds.reaction
        await pause()


def beyond_memory(ctx: Context, choices: int = 1) -> list[pb.GenerateRequest]:
    """Requests that can all begin at the same time, and that need more memory than there is before they end.

    The last one has so many choices; if several, it is small, and the first one's prompt begins with its own.
    Nobody has sent their prompts before.
    NotApplicable where the target is too large, too small or too slow for such requests.
    """
    config = ctx.config
    if not (config.HasField("total_kv_blocks") and config.HasField("max_num_seqs")):
        raise NotApplicable("EngineConfig.total_kv_blocks or EngineConfig.max_num_seqs is absent")
    if len(ranks_of(config)) > 1:
        raise NotApplicable("requests are spread over ranks")
    blocks, size = config.total_kv_blocks, ctx.block_size
    slots = min(config.max_num_seqs, MOST_REQUESTS)
    if blocks * size > MOST_PLACES:
        raise NotApplicable(f"{blocks * size} tokens of KV cache are more than the kit fills")
    several = choices if 1 < choices < slots - 1 else 0
    # The last block of each prompt has room: who comes first has not grown when the last one comes.
    each = int((BEGUN * blocks - several * SMALL) / (slots - several)) * size - size // 2
    tokens = math.ceil((ENDED - BEGUN) * blocks * size / slots)
    # What a prompt lacks to whole blocks is much where there are few of them.
    while each > 0 and (slots - several) * math.ceil((each + tokens) / size) <= blocks:
        tokens += size
    if each < 1 or ctx.tokens(tokens, each) < tokens:
        raise NotApplicable("all that has a slot fits the memory, or a token takes too long")
    prompts = [ctx.prompt(each, salt=ctx.fresh_salt()) for _ in range(slots - several)]
    made = [ctx.request(token_ids=prompt, max_tokens=tokens) for prompt in prompts]
    if several:
        small = prompts[0][: SMALL * size - size // 2]
        made.append(ctx.request(token_ids=small, max_tokens=tokens, n=several))
    return made


@asynccontextmanager
async def short_of_memory(
    ctx: Context, requests: Sequence[pb.GenerateRequest], *, multiplexed: int = 0
) -> AsyncIterator[list[Stream]]:
    """All at once and read, until one of them had to give up its memory; NotApplicable when none has to.

    The last `multiplexed` of them travel so, if the target has that.
    """
    before = (await ctx.client.load()).preemptions
    streams = [
        ctx.start(request, timeout=ctx.bounds.check, is_multiplexed=number <= multiplexed)
        for number, request in zip(range(len(requests), 0, -1), requests, strict=True)
    ]
    reading = [asyncio.ensure_future(stream.end()) for stream in streams]
    try:
        looks = Looks(ctx.bounds.check / 2)
        while (await ctx.client.load()).preemptions == before:
            if looks.are_over() or all(each.done() for each in reading):
                raise NotApplicable(UNHURT)
            await pause()
        yield streams
        await asyncio.gather(*reading)
        if any(each.exchange.code is grpc.StatusCode.RESOURCE_EXHAUSTED for each in streams):
            raise NotApplicable("a request that would have to wait for memory is refused here")
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
