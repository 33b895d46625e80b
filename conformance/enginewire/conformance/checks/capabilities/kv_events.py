"""KVE: what a router learns about the prefix cache, and that it is so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, Phase, check, negative
from enginewire.conformance.session.adapters import loaded
from enginewire.conformance.session.company import PROBE
from enginewire.conformance.session.context import LEFT_OUT, Context, require_refusal
from enginewire.conformance.session.requests import Value, change, num_alike
from enginewire.conformance.session.sizes import ranks_of
from enginewire.conformance.session.views.kv_view import (
    Picture,
    Subscription,
    caught_up,
    hashes,
    sources,
    subscribe,
    watching,
)
from enginewire.conformance.wire.connection import NARROW
from enginewire.conformance.wire.violation import expect, expect_equal

BLOCKS: Final = 4
LASTING: Final = 256
"""Tokens of a request beside which the cache is emptied."""
FUTURE: Final = 1_000_000
"""Events beyond the newest one."""
PRESSURE_TOKENS: Final = 20_000
"""A cache above this size is not filled to see evictions: it would take too long on slow engines."""
LONGEST: Final = 2040
SLOW_REQUESTS: Final = 12
WILDCARD: Final = re.compile(r"(^|//|@)(\*|0\.0\.0\.0|\[?::\]?)(:\d+)?(/|$)")


@dataclass(frozen=True, slots=True)
class Observed:
    """A subscriber's events around some requests. `cached`: of an idle engine afterwards.

    `later`: the snapshot of another subscriber, who comes then. `emptied`: when the cache was emptied, and
    has `left`, what one knows who comes then, and who listened. `is_shared`: one beside knew all of it.
    `prompts`: the tokens of some that were asked for, a beginning that all of them have included.
    """

    snapshot: list[pb.KvEvent]
    changes: list[pb.KvEvent]
    picture: Picture
    later: list[pb.KvEvent]
    cached: int
    emptied: tuple[Picture, Picture]
    left: int
    is_shared: bool
    prompts: list[tuple[int, ...]]


@check("KVE-01")
async def sources_stay(ctx: Context) -> None:
    """Two answers."""
    await _same_sources(ctx)
    await _same_sources(ctx)


@check("KVE-01", variant="after-load", phase=Phase.LOAD, alone=True)
async def sources_stay_under_load(ctx: Context) -> None:
    """At the end of a run."""
    await _same_sources(ctx)


@check("KVE-02")
async def each_rank_has_a_source(ctx: Context) -> None:
    """Ranks and endpoints."""
    found = await sources(ctx)
    ranks = sorted(source.dp_rank for source in found)
    expect_equal(ranks, list(ranks_of(ctx.config)), "the sources are not one per rank")
    for source in found:
        wild = WILDCARD.search(source.endpoint)
        expect(not wild, "an endpoint is a wildcard", expected="an address", seen=source.endpoint)


@check("KVE-03", needs=(*SHAPE, "INF-04"), alone=True)
async def sequences_grow_by_one(ctx: Context) -> None:
    """A snapshot, then some requests. Two listen."""
    observed = await _observed(ctx)
    expect(observed.snapshot, "a new subscription does not begin with a snapshot", expected="cleared")
    expect(observed.changes, "new prompts of several blocks cause no event", expected="stored")
    sequence = observed.snapshot[0].sequence
    for event in observed.changes:
        expect_equal(event.sequence, sequence + 1, "sequence does not grow by 1")
        sequence += 1
    expect(observed.is_shared, "one of two subscribers does not get all events", expected="the same for both")


@check("KVE-04", needs=("KVE-03",), alone=True)
async def stored_blocks_are_whole(ctx: Context) -> None:
    """Tokens and parents of every stored event; together they say each prompt, to who comes later too."""
    observed = await _observed(ctx)
    told = _told(ctx, [*observed.snapshot, *observed.changes])
    for prompt in observed.prompts:
        full = prompt[: len(prompt) // ctx.block_size * ctx.block_size]
        seen = max((num_alike(each, full) for each in told.values()), default=0)
        message = "the tokens of stored blocks are not those of a prompt"
        expect_equal(seen, len(full), f"{message}: so many are right from its begin on")
    for name, tokens in _told(ctx, observed.later).items():
        message = "a snapshot says of a block, from the begin of its sequence on, what its event did not say"
        before = told.get(name, tokens)
        expect(tokens == before, message, expected=f"{len(before)} tokens", seen=f"{len(tokens)} tokens")


@check("KVE-05", needs=("KVE-03", "KVE-04"), alone=True)
async def the_picture_is_complete(ctx: Context) -> None:
    """Removed blocks were stored, and the blocks add up to those of GetLoad."""
    observed = await _observed(ctx)
    expect(
        not observed.picture.oddities, "removed blocks were not stored", seen=observed.picture.oddities[:3]
    )
    message = "a subscriber holds another number of blocks than kv_blocks_cached"
    expect_equal(len(observed.picture.blocks), observed.cached, message)
    expect_equal(len(set(hashes(observed.later))), observed.cached, message)
    for known in observed.emptied:
        expect_equal(len(known.blocks), observed.left, f"{message}, when the cache was emptied")


@check("KVE-06", needs=("KVE-03",), alone=True)
async def events_are_replayed(ctx: Context) -> None:
    """From the middle of what was seen before; a number that no event has had begins with a snapshot."""
    observed = await _observed(ctx)
    late = await subscribe(ctx, after=observed.changes[-1].sequence + FUTURE)
    has_begun = await late.until(lambda: bool(late.events), ctx.bounds.answer)
    late.close()
    message = "a subscription after an event that never was does not begin with a snapshot"
    expect(has_begun and late.snapshot, message, expected="cleared", seen=late.events[:1] or "nothing")
    wanted = observed.changes[len(observed.changes) // 2 :]
    now = await watching(ctx)
    now.close()
    again = await subscribe(ctx, after=wanted[0].sequence - 1)
    await again.until(lambda: len(again.changes) >= len(wanted) or _is_like(again, now), ctx.bounds.reaction)
    again.close()
    if again.snapshot and again.snapshot[0] != wanted[0]:
        message = "a snapshot instead of a replay is not the cache"
        expect(_is_like(again, now), message, seen=len(again.events))
        return
    seen = again.events[: len(wanted)]
    expect_equal(len(seen), len(wanted), "the events after after_sequence do not come again")
    changed = [old.sequence for old, new in zip(wanted, seen, strict=True) if old != new]
    expect(not changed, "events are not the same when they are sent again", seen=changed[:3])


@check("KVE-07", phase=Phase.LOAD, needs=(*SHAPE, "KVE-03"), alone=True)
async def slow_subscribers_slow_nobody(ctx: Context) -> None:
    """Long prompts while a subscriber reads nothing, on a connection that lives."""
    slow = await subscribe(ctx, client=ctx.connect(None, *NARROW))
    await slow.until(lambda: bool(slow.events), ctx.bounds.answer)
    for _ in range(SLOW_REQUESTS):
        await ctx.generate(await _asking(ctx, token_ids=_long_prompt(ctx)))
    slow.close()


@check("KVE-08", needs=("KVE-03", "KVE-04"), alone=True, counts_prompt=True, not_beside=(PROBE,))
async def hashes_name_prefixes(ctx: Context) -> None:
    """One prompt, again, with another end, and under a salt."""
    size, subscription = ctx.block_size, await watching(ctx)
    prompt = ctx.fresh_prompt(BLOCKS, least=2)
    count = len(prompt) // size
    first = await _stored_for(ctx, subscription, prompt)
    expect_equal(len(first), count, "the full blocks of a prompt are not stored")
    shared = count // 2
    other = [*prompt[: shared * size], *ctx.fresh_prompt(count - shared)]
    branch = await _stored_for(ctx, subscription, other)
    expect_equal(list(branch)[:shared], list(first)[:shared], "a shared prefix has other block hashes")
    salted = await _stored_for(ctx, subscription, prompt, cache_salt="kit")
    expect(not set(first) & set(salted), "another cache_salt has the same block hashes")
    reset = await ctx.client.ask("AdminService.ResetPrefixCache", pb.ResetPrefixCacheRequest())
    if reset.is_ok:
        again = await _stored_for(ctx, subscription, prompt)
        expect_equal(list(again), list(first), "an equal prompt has other block hashes the second time")
    subscription.close()


@check(
    "KVE-08",
    variant="adapter",
    phase=Phase.LOAD,
    needs=("KVE-03", "KVE-04", "LOR-01"),
    gate="lora",
    alone=True,
    not_beside=(PROBE,),
)
async def hashes_name_adapters(ctx: Context) -> None:
    """One prompt for the model and for an adapter."""
    async with loaded(ctx, ctx.session.options.sources(1)) as (name,):
        subscription = await watching(ctx)
        prompt = ctx.fresh_prompt(BLOCKS)
        own = await _stored_for(ctx, subscription, prompt)
        adapted = await _stored_for(ctx, subscription, prompt, lora_name=name)
        expect(not set(own) & set(adapted), "an adapter has the block hashes of the model")
        subscription.close()


@negative("kv_events")
async def events_are_refused(ctx: Context) -> None:
    """Both RPCs."""
    asked = await ctx.client.ask("KvService.GetKvEventSources", pb.GetKvEventSourcesRequest())
    require_refusal(asked, LEFT_OUT)
    subscribed = await ctx.client.ask("KvService.SubscribeKvEvents", pb.SubscribeKvEventsRequest())
    require_refusal(subscribed, LEFT_OUT)


async def _same_sources(ctx: Context) -> None:
    known = await ctx.session.once("kv-sources", lambda: sources(ctx))
    expect_equal(await sources(ctx), known, "the sources are not the same in every answer")


async def _observed(ctx: Context) -> Observed:
    return await ctx.session.once("kv-events", lambda: _observe(ctx))


async def _observe(ctx: Context) -> Observed:
    """Prompts of some blocks, repeated, branched, as many as fill a small cache, and the first ones again.

    Before the others the cache is emptied, while a request holds some of its blocks.
    """
    subscription, beside = await watching(ctx), await watching(ctx)
    prompt = ctx.fresh_prompt(BLOCKS, least=2)
    if ctx.capabilities.prefix_cache:
        await _reset_beside(ctx)
    branch = [*prompt[: ctx.block_size], *ctx.fresh_prompt(1)]
    sent = [
        (await ctx.generate(await _asking(ctx, token_ids=tokens))).request.request
        for tokens in (prompt, prompt, branch, *_pressure(ctx), prompt, branch)
    ]
    # An engine may answer what is a probe otherwise.
    prompts = [tuple(each.token_ids) for each in sent[1:3] if not each.is_probe]
    later = await caught_up(ctx, subscription, beside)
    cached = (await ctx.client.load()).kv_blocks_cached
    picture, changes, is_shared = subscription.picture(), subscription.changes, beside.is_like(subscription)
    if ctx.capabilities.prefix_cache:
        await ctx.client.ask("AdminService.ResetPrefixCache", pb.ResetPrefixCacheRequest())
    emptied = await watching(ctx)
    left = (await ctx.client.load()).kv_blocks_cached - emptied.elsewhere
    await later.until(lambda: len(later.picture().blocks) == left, ctx.bounds.reaction)
    for each in (subscription, beside, later, emptied):
        each.close()
    return Observed(
        snapshot=subscription.snapshot,
        changes=changes,
        picture=picture,
        later=later.snapshot,
        cached=cached - later.elsewhere,
        emptied=(emptied.picture(), later.picture()),
        left=left,
        is_shared=is_shared,
        prompts=prompts,
    )


async def _reset_beside(ctx: Context) -> None:
    await ctx.generate(await _asking(ctx, token_ids=ctx.fresh_prompt(BLOCKS)))
    asked = await _asking(ctx, token_ids=ctx.fresh_prompt(BLOCKS))
    stream = await ctx.start(change(asked, max_tokens=ctx.tokens(LASTING))).first_token()
    await ctx.client.ask("AdminService.ResetPrefixCache", pb.ResetPrefixCacheRequest())
    stream.cancel()
    await ctx.idle()


def _pressure(ctx: Context) -> list[list[int]]:
    """Prompts that fill the cache, if it is small enough."""
    room = ctx.config.total_kv_blocks * ctx.block_size
    if not room or room > PRESSURE_TOKENS:
        return []
    longest = len(_long_prompt(ctx))
    return [_long_prompt(ctx) for _ in range(room // longest + 1)]


def _long_prompt(ctx: Context) -> list[int]:
    return ctx.prompt(min(ctx.longest_prompt(8), LONGEST), salt=ctx.fresh_salt())


def _told(ctx: Context, events: list[pb.KvEvent]) -> dict[int, tuple[int, ...]]:
    """What each block says from the begin of its sequence on; a Violation for one that is not whole."""
    picture, said = Picture(), dict[int, tuple[int, ...]]()
    for event in events:
        if event.HasField("stored"):
            _is_whole(ctx, event.stored, picture)
            _read(event.stored, said)
        picture.apply(event)
    return said


def _is_whole(ctx: Context, stored: pb.KvBlocksStored, picture: Picture) -> None:
    expect(stored.block_hashes, "a stored event names no block")
    expect_equal(stored.block_size, ctx.block_size, "block_size is not that of the config")
    wanted = len(stored.block_hashes) * stored.block_size
    expect_equal(len(stored.token_ids), wanted, "a stored event has not block_size token ids per block")
    if stored.HasField("parent_block_hash"):
        known = stored.parent_block_hash in picture.blocks
        expect(known, "the parent of a stored block is not stored", seen=f"{stored.parent_block_hash:x}")


def _read(stored: pb.KvBlocksStored, said: dict[int, tuple[int, ...]]) -> None:
    """Add what each block says, from the begin of its sequence on."""
    before = said.get(stored.parent_block_hash, ()) if stored.HasField("parent_block_hash") else ()
    for place, name in enumerate(stored.block_hashes):
        start = place * stored.block_size
        before = (*before, *stored.token_ids[start : start + stored.block_size])
        said[name] = before


def _is_like(one: Subscription, other: Subscription) -> bool:
    """It has a snapshot, and knows the same blocks."""
    return bool(one.snapshot) and one.is_like(other)


async def _asking(ctx: Context, **changes: Value) -> pb.GenerateRequest:
    """A request that goes to the rank whose events are read."""
    rank = (await sources(ctx))[0].dp_rank
    routed: dict[str, Value] = {"dp_rank": rank} if ctx.capabilities.data_parallel else {}
    return ctx.request(max_tokens=1, **changes, **routed)


async def _stored_for(
    ctx: Context, subscription: Subscription, prompt: list[int], **changes: Value
) -> dict[int, None]:
    """The hashes of a prompt's full blocks after a request for it, in order; those stored before included.

    A block is known by its tokens, its adapter and the block before it.
    """
    before = len(subscription.events)
    await ctx.generate(await _asking(ctx, token_ids=prompt, **changes))
    (await caught_up(ctx, subscription)).close()
    new = [event for event in subscription.events[before:] if event.HasField("stored")]
    chain = dict.fromkeys(hashes(new))
    parent = new[0].stored.parent_block_hash if new and new[0].stored.HasField("parent_block_hash") else None
    blocks = subscription.picture().blocks
    while parent is not None:
        chain = {parent: None, **chain}
        parent = blocks.get(parent)
    return chain
