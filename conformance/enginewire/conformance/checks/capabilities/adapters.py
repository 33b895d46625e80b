"""LOR: adapters are loaded, used and kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, Phase, check, negative
from enginewire.conformance.session.adapters import LIST, adapters, listed, load, loaded, new_name, unload
from enginewire.conformance.session.company import PROBE
from enginewire.conformance.session.context import LEFT_OUT, REFUSALS, Context, require_refusal
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.saturation import queued, saturated
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

ALREADY_EXISTS: Final = (grpc.StatusCode.ALREADY_EXISTS,)
NOT_FOUND: Final = (grpc.StatusCode.NOT_FOUND,)
EXHAUSTED: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED,)
IN_USE: Final = (grpc.StatusCode.FAILED_PRECONDITION,)

PROMPTS: Final = 3
TOKENS: Final = 16
BLOCKS: Final = 4
ELSEWHERE: Final = ("../../../../../etc", "../../../../../no-such-folder", "/", "/no-such-folder")
MOST: Final = 64
"""More adapters than this would take too long to load."""


@check("LOR-01", alone=True)
async def names_are_told_apart(ctx: Context) -> None:
    """The same again, another one under its name, one that is not there."""
    one, other = ctx.session.options.sources(2)
    async with loaded(ctx, [one]) as (name,):
        again = await load(ctx, name, one)
        expect(again.is_ok, "loading an adapter again fails", expected="OK", seen=again.status)
        require_refusal(await load(ctx, name, other), ALREADY_EXISTS)
        # The monitor compares it.
        await ctx.client.info()
    require_refusal(await unload(ctx, new_name(ctx)), NOT_FOUND)


@check("LOR-08", alone=True, needs=("LOR-01",))
async def sources_elsewhere_are_not_told_apart(ctx: Context) -> None:
    """Places outside of the folder of adapters: those that any machine has, and those that none has."""
    refused = [await load(ctx, new_name(ctx), source) for source in ELSEWHERE]
    for exchange in refused:
        require_refusal(exchange, NOT_FOUND)
    texts = {exchange.text.replace(source, "") for exchange, source in zip(refused, ELSEWHERE, strict=True)}
    expect(len(texts) == 1, "a refusal says whether there is such a folder", expected="one text", seen=texts)


@check("LOR-02", alone=True, needs=("LOR-01",))
async def the_list_is_current(ctx: Context) -> None:
    """After each load and unload, in the order of names, not of loads; and one name for two, in turn."""
    later_first = [f"{letter}-{new_name(ctx)}" for letter in "ba"]
    async with loaded(ctx, ctx.session.options.sources(2), later_first) as names:
        seen = await listed(ctx)
        expect(set(names) <= set(seen), "a loaded adapter is not listed", expected=names, seen=seen)
        expect_equal(seen, sorted(seen), "the adapters are not sorted by name")
        (await unload(ctx, names[0])).response()
        seen = await listed(ctx)
        expect(names[0] not in seen, "an unloaded adapter is listed", seen=names[0])
        expect(names[1] in seen, "an adapter is not listed any more", expected=names[1], seen=seen)
    shown = list[str]()
    for source in ctx.session.options.sources(2):
        async with loaded(ctx, [source], later_first[:1]) as (name,):
            shown += [each.source for each in await adapters(ctx) if each.name == name]
    expect(len(set(shown)) == len(shown), "an adapter is listed with the source of another one", seen=shown)


@check("LOR-03", needs=SHAPE)
async def unknown_adapters_are_refused(ctx: Context) -> None:
    """One that was never loaded."""
    await ctx.rejects({"lora_name": new_name(ctx)}, codes=NOT_FOUND)


@check("LOR-03", variant="unloaded", needs=(*SHAPE, "LOR-01", "LOR-03"), alone=True)
async def unloaded_adapters_are_refused(ctx: Context) -> None:
    """One that served a request before."""
    async with loaded(ctx, ctx.session.options.sources(1)) as (name,):
        await ctx.generate(ctx.request(lora_name=name))
        await ctx.idle()
        (await unload(ctx, name)).response()
        require_refusal(await ctx.refused(ctx.request(lora_name=name)), NOT_FOUND, "routing.lora_name")


@check("LOR-04", needs=(*SHAPE, "LOR-01"), alone=True)
async def each_has_its_own(ctx: Context) -> None:
    """Two adapters and the model, one after the other and all at once."""
    async with loaded(ctx, ctx.session.options.sources(2)) as names:
        kinds: list[dict[str, Value]] = [{"lora_name": name} for name in ("", *names)]
        wanted = [(kind, ctx.prompt(salt=salt)) for salt in range(PROMPTS) for kind in kinds]
        apart = [await _tokens(ctx, *each) for each in wanted]
        together = await asyncio.gather(*(_tokens(ctx, *each) for each in wanted))
        own = [tuple(map(tuple, apart[kind :: len(kinds)])) for kind in range(len(kinds))]
        if len(set(own)) < len(kinds):
            raise NotApplicable("two of the given adapters and the model give the same tokens")
        # Batches may round differently, unless the engine says that they do not.
        count = len(apart[0]) if ctx.capabilities.batch_invariant else 1
        for (kind, _), alone, batched in zip(wanted, apart, together, strict=True):
            expect_equal(batched[:count], alone[:count], f"other tokens in a batch of adapters, for {kind}")


@check(
    "LOR-04", variant="by-model", needs=(*SHAPE, "LOR-01", "LOR-03", "LOR-03/unloaded", "LOR-04"), alone=True
)
async def a_model_may_be_an_adapter(ctx: Context) -> None:
    """`model` and `routing.lora_name` are two ways to name one, and two of them are a mistake."""
    async with loaded(ctx, ctx.session.options.sources(2)) as (one, other):
        prompt = ctx.prompt()
        own, base = await _tokens(ctx, {"lora_name": one}, prompt), await _tokens(ctx, {}, prompt)
        if own[:1] == base[:1]:
            raise NotApplicable("the given adapter begins as the model does")
        by_model = await _tokens(ctx, {"model": one}, prompt)
        expect_equal(by_model[:1], own[:1], "an adapter that `model` names gives other tokens")
        exchange = await ctx.refused(ctx.request(model=one, lora_name=other))
        require_refusal(exchange, (grpc.StatusCode.INVALID_ARGUMENT,))


@check("LOR-05", needs=(*SHAPE, "LOR-01", "LOR-02"), alone=True)
async def adapters_in_use_stay(ctx: Context) -> None:
    """Unload while a long request has it."""
    await _stays_in_use(ctx, "lora_name")


@check("LOR-05", variant="by-model", needs=("LOR-05", "LOR-04/by-model"), alone=True, not_beside=(PROBE,))
async def adapters_that_a_model_names_stay(ctx: Context) -> None:
    """The same for a request that names it in `model`."""
    await _stays_in_use(ctx, "model")


async def _stays_in_use(ctx: Context, field: str) -> None:
    async with loaded(ctx, ctx.session.options.sources(1)) as (name,):
        named: dict[str, Value] = {field: name}
        stream = await ctx.start(ctx.long_request(**named)).first_token()
        exchange = await unload(ctx, name)
        if not (await ctx.client.load()).running:
            raise NotApplicable("a request ends here before an adapter can be unloaded under it")
        require_refusal(exchange, IN_USE)
        await stream.more(len(stream.tokens) + ctx.tokens(TOKENS) // 2)
        expect(name in await listed(ctx), "an adapter in use is not listed any more", expected=name)
        await ctx.client.abort([stream.request.request_id])
        await stream.end()


@check("LOR-05", variant="queued", phase=Phase.LOAD, alone=True, needs=(*SHAPE, "LOR-01", "LOR-05", "CON-03"))
async def adapters_that_are_waited_for_stay(ctx: Context) -> None:
    """Unload while the only request for it waits for a slot."""
    async with loaded(ctx, ctx.session.options.sources(1)) as (name,):
        async with saturated(ctx) as running:
            waiting = await queued(ctx, running, ctx.request(lora_name=name))
            exchange = await unload(ctx, name)
            if not (await ctx.client.load()).waiting:
                raise NotApplicable("the slots are free again before an adapter can be unloaded")
        require_refusal(exchange, IN_USE)
        await waiting.ok()


@check("LOR-06", needs=("LOR-01", "LOR-02"), alone=True)
async def the_limit_holds(ctx: Context) -> None:
    """As many as there may be, and one more."""
    source = ctx.session.options.sources(1)[0]
    async with _full(ctx, source):
        full = await listed(ctx)
        name = new_name(ctx)
        exchange = await load(ctx, name, source)
        seen = await listed(ctx)
        if exchange.is_ok:
            await unload(ctx, name)
        require_refusal(exchange, EXHAUSTED)
        expect_equal(seen, full, "a load that was refused changed what is loaded")


@check("LOR-01", variant="full", needs=("LOR-01", "LOR-06"), alone=True)
async def the_same_again_needs_no_room(ctx: Context) -> None:
    """As many as there may be, and one of them again."""
    source = ctx.session.options.sources(1)[0]
    async with _full(ctx, source) as names:
        if not names:
            raise NotApplicable("all that may be loaded is loaded already")
        again = await load(ctx, names[0], source)
    message = "loading an adapter again fails where no other one fits in"
    expect(again.is_ok, message, expected="OK", seen=again.status)


@check(
    "LOR-07",
    needs=(*SHAPE, "LOR-01", "USE-06"),
    alone=True,
    gate="prefix_cache",
    counts_prompt=True,
    not_beside=(PROBE,),
)
async def blocks_are_not_shared(ctx: Context) -> None:
    """One prompt with an adapter, then with another and with the model."""
    block, prompt = ctx.block_size, ctx.fresh_prompt(BLOCKS)
    async with loaded(ctx, ctx.session.options.sources(2)) as names:
        await _cached(ctx, prompt, names[0])
        again = await _cached(ctx, prompt, names[0])
        expect(again >= block, "a repeated prompt of an adapter has no cached block", seen=again)
        expect_equal(await _cached(ctx, prompt, names[1]), 0, "an adapter uses blocks of another one")
        expect_equal(await _cached(ctx, prompt, ""), 0, "the model uses blocks of an adapter")


@check(
    "LOR-07",
    variant="renamed",
    needs=("LOR-07",),
    alone=True,
    gate="prefix_cache",
    counts_prompt=True,
    not_beside=(PROBE,),
)
async def blocks_go_with_their_adapter(ctx: Context) -> None:
    """One prompt, once more when the adapter's name is that of another source."""
    name, prompt = new_name(ctx), ctx.fresh_prompt(BLOCKS)
    for source in ctx.session.options.sources(2):
        async with loaded(ctx, [source], [name]):
            seen = await _cached(ctx, prompt, name)
            expect_equal(seen, 0, "an adapter uses blocks of one that had its name before")


@negative("lora")
async def adapters_are_refused(ctx: Context) -> None:
    """A request that names one, and each RPC about them."""
    await ctx.rejects({"lora_name": "some-adapter"}, codes=REFUSALS)
    require_refusal(await load(ctx, "some-adapter", "some/source"), LEFT_OUT)
    require_refusal(await unload(ctx, "some-adapter"), LEFT_OUT)
    require_refusal(await ctx.client.ask(LIST, pb.ListAdaptersRequest()), LEFT_OUT)


async def _tokens(ctx: Context, kind: dict[str, Value], prompt: list[int]) -> list[int]:
    return (await ctx.generate(ctx.request(token_ids=prompt, max_tokens=ctx.tokens(TOKENS), **kind))).tokens


async def _cached(ctx: Context, prompt: list[int], name: str) -> int:
    kind: dict[str, Value] = {"lora_name": name} if name else {}
    stream = await ctx.generate(ctx.request(token_ids=prompt, **kind))
    return stream.usage.prompt_tokens_details.cached_tokens


@asynccontextmanager
async def _full(ctx: Context, source: str) -> AsyncIterator[Sequence[str]]:
    """As many adapters as there may be; the names of those that were not there before."""
    if not ctx.limits.HasField("max_loras") or ctx.limits.max_loras > MOST:
        raise NotApplicable(f"Limits.max_loras is absent or above {MOST}")
    async with loaded(ctx, [source] * (ctx.limits.max_loras - len(await listed(ctx)))) as names:
        yield names
