"""MET: what is exported is what happens."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from enginewire.conformance.checks.capabilities.embeddings import lasting_embedding
from enginewire.conformance.checks.capabilities.endings import Way, endings
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.session.views.exporter import GENERATED, RUNNING, WAITING, Metrics, scrape
from enginewire.conformance.session.views.kv_view import sources
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

REQUESTS: Final = 6
TOKENS: Final = 8
LASTING: Final = 0.1
"""Seconds."""
LONGER: Final = 3
"""Than it takes until something shows."""
CHOICES: Final = 3
BEYOND: Final = 3
"""Requests that have to wait for a slot."""
MOST: Final = 64
MOST_UNSENT: Final = 64
"""Tokens of a request that an engine may have computed when it is cut, and does not send any more."""
SCRAPE_SECONDS: Final = 0.05


@check("MET-01", needs=("KVE-02",))
async def ranks_are_named(ctx: Context) -> None:
    """Now as at the start, and the ranks that have KV events."""
    ranks = list(ctx.config.metrics_ranks)
    expect(ranks, "metrics are advertised without metrics_ranks")
    expect_equal(len(set(ranks)), len(ranks), "metrics_ranks names a rank twice")
    now = list((await ctx.client.info()).config.metrics_ranks)
    expect_equal(now, ranks, "metrics_ranks changed")
    if ctx.capabilities.kv_events:
        with_events = sorted(source.dp_rank for source in await sources(ctx))
        expect_equal(sorted(ranks), with_events, "metrics_ranks are not the ranks of GetKvEventSources")


@check("MET-02", needs=SHAPE, alone=True)
async def counters_grow_and_gauges_return(ctx: Context) -> None:
    """Looked at before, during and after one request, and then many like it, which leave no more behind.

    Nor do others that come to their end in every way there is.
    """
    seen, base = [await scrape(ctx)], None
    for count in (1, REQUESTS):
        asked = [ctx.lasting_request(LASTING, bypass_prefix_cache=True) for _ in range(count)]
        work = asyncio.gather(*(ctx.generate(request) for request in asked))
        while not work.done():
            seen.append(await scrape(ctx))
            await pause()
        await work
        async with endings(ctx, bypass_prefix_cache=True) as asker:
            for ask in asker.ways().values():
                await ask(())
        await ctx.idle()
        seen.append(await _until(ctx, lambda now: not (now.sum_of(RUNNING) or now.sum_of(WAITING))))
        base = base or seen[-1].gauges()
    for before, after in pairwise(each.growing() for each in seen):
        shrunk = [name for name, value in before.items() if after.get(name, 0) < value]
        expect(not shrunk, "a counter decreased", seen=shrunk[:3])
    busy = {name: value for name, value in seen[-1].gauges().items() if base and base.get(name) != value}
    expect(not busy, "gauges do not return to their base when the engine is idle", seen=list(busy)[:3])
    left = seen[-1].sum_of(RUNNING) + seen[-1].sum_of(WAITING)
    expect_equal(left, 0, "an idle engine exports requests that run or wait")


@check("MET-03", phase=Phase.LOAD, needs=(*SHAPE, "MET-02"), alone=True, not_beside=("n",))
async def requests_add_up(ctx: Context) -> None:
    """One of several choices; then more long requests than slots, of one: choices run, requests wait.

    Then without one of those that wait, which is aborted, and when all of them have left.
    """
    await _choices_count(ctx)
    count = min(slots_of(ctx.config) or REQUESTS, MOST) + BEYOND
    streams = [ctx.start(ctx.long_request()) for _ in range(count)]
    await asyncio.gather(*(stream.accepted() for stream in streams))
    try:
        if not await _are_in_flight(ctx, count):
            raise NotApplicable("the requests end here before they can be counted")
        await ctx.client.abort([streams[-1].request.request_id])
        await _are_in_flight(ctx, count - 1)
    finally:
        for stream in streams:
            stream.cancel()
    await ctx.idle()
    await _are_in_flight(ctx, 0)


@check(
    "MET-03",
    variant="embeddings",
    gate="embeddings",
    needs=("MET-03", "EMB-07"),
    phase=Phase.LOAD,
    alone=True,
)
async def embeddings_add_up_too(ctx: Context) -> None:
    """One that lasts, again and again: some of them are in flight when it is looked."""
    took = list[float]()

    async def ask_again() -> None:
        while True:
            began = time.monotonic()
            await (await lasting_embedding(ctx))
            took.append(time.monotonic() - began)

    asking = asyncio.ensure_future(ask_again())
    try:
        now = await _until(ctx, lambda now: now.sum_of(RUNNING) + now.sum_of(WAITING) > 0)
    finally:
        await stop([asking])
    if took and max(took) < LASTING:
        raise NotApplicable("the longest request to embed ends before it can be counted")
    seen = now.sum_of(RUNNING) + now.sum_of(WAITING)
    expect(seen, "a request to embed is not among the exported ones", expected="1 or more", seen=seen)


async def _are_in_flight(ctx: Context, count: int) -> bool:
    """Whether so many requests run or wait, which have to be the exported ones."""
    now = await _until(ctx, lambda now: now.sum_of(RUNNING) + now.sum_of(WAITING) == count)
    load = await ctx.client.load()
    if load.running + load.waiting < count:
        return False
    seen = now.sum_of(RUNNING) + now.sum_of(WAITING)
    expect_equal(seen, count, "the exported requests are not those in flight")
    return True


async def _choices_count(ctx: Context) -> None:
    """What is exported of a request with several choices beside another one is what `Load` says of them."""
    several, blocks = ctx.choices(CHOICES), (await ctx.idle()).kv_blocks_total
    request = ctx.lasting_request(LONGER * ctx.bounds.reaction)
    # Where the engine says how many tokens fit it, half of them.
    fit = blocks * ctx.block_size // (2 * (several + 1)) - len(request.request.token_ids)
    tokens = min(request.request.stop_conditions.max_tokens, max(fit, 1) if blocks else math.inf)
    streams = [ctx.start(ctx.request(max_tokens=int(tokens), n=count)) for count in (several, 1)]
    begun = await asyncio.gather(*(anext(stream.call, None) for stream in streams))
    load = await ctx.client.load()
    now = await _until(ctx, lambda now: now.sum_of(RUNNING) == load.running)
    later = await ctx.client.load()
    for stream in streams:
        stream.cancel()
    await ctx.idle()
    is_steady = (load.running, load.waiting) == (later.running, later.waiting)
    if None not in begun and load.running and is_steady:
        seen = now.sum_of(RUNNING)
        expect_equal(seen, load.running, "the exported running requests are not those of Load")


@check("MET-04", needs=(*SHAPE, "ABO-01"), alone=True)
async def generated_tokens_are_counted(ctx: Context) -> None:
    """As many as were streamed: of some that are served together, then of one of every shape and end."""
    await ctx.idle()
    before = (await scrape(ctx)).sum_of(GENERATED)
    streams = await asyncio.gather(
        *(ctx.generate(ctx.request(max_tokens=ctx.tokens(TOKENS))) for _ in range(REQUESTS))
    )
    wanted = before + sum(len(choice.tokens) for stream in streams for choice in stream.choices.values())
    now = await _until(ctx, lambda now: now.sum_of(GENERATED) >= wanted)
    expect_equal(now.sum_of(GENERATED), wanted, "the exported tokens are not those that were streamed")
    async with endings(ctx) as asker:
        for way, ask in asker.whole_ways().items():
            await _are_counted(ctx, way, ask)
        for way, ask in asker.cut_ways().items():
            await _are_counted(ctx, way, ask, unsent=MOST_UNSENT)


async def _are_counted(ctx: Context, way: str, ask: Way, unsent: int = 0) -> None:
    """The tokens of one request. Those that were on their way when it was cut may count."""
    before = (await scrape(ctx)).sum_of(GENERATED)
    least = before + await ask(())
    seen = (await _until(ctx, lambda now: now.sum_of(GENERATED) >= least)).sum_of(GENERATED)
    message = f"the exported tokens of a request ({way}) are not those that were streamed"
    expect(least <= seen <= least + unsent, message, expected=least - before, seen=seen - before)


async def _until(ctx: Context, holds: Callable[[Metrics], bool]) -> Metrics:
    """The first scrape of which something holds, or the last one within the reaction bound."""
    looks = Looks(ctx.bounds.reaction)
    while not holds(now := await scrape(ctx)) and not looks.are_over():
        await pause(SCRAPE_SECONDS)
    return now
