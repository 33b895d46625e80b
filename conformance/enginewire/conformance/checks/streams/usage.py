"""USE: the usage on the last terminal output."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import cast

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.events import known_keys
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.checks.streams.shapes import CHOICES, MULTIPLEXED, PLAIN, Shape, ask, check_in
from enginewire.conformance.running.registry import SHAPE, Phase, check, negative
from enginewire.conformance.session import requests
from enginewire.conformance.session.adapters import loaded
from enginewire.conformance.session.company import HINTS, PROBE
from enginewire.conformance.session.context import LEFT_OUT, Context, require_refusal
from enginewire.conformance.session.invalid_requests import failed_later
from enginewire.conformance.session.saturation import queued, saturated
from enginewire.conformance.wire.multiplexed import Handle
from enginewire.conformance.wire.stream import Choice
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

BLOCKS = 4
HANDED_IN = 5
TENANT = "tenant-é" * 14
"""Of two salts that end differently, and no sooner: 127 bytes with their last one."""
OTHER_TENANTS = (TENANT + "b", TENANT + "A", TENANT + "a ", "")
"""Than the one that ends with an a."""
Changes = Mapping[str, requests.Value]
NOTHING: Changes = {}
FOR_OTHERS: Changes = {field.name: value for field, value in HINTS.ListFields()}
"""What no engine has a use for."""
OVER_A_STREAM = (*SHAPE, "SEQ-01", "SEQ-02", "USE-05", "MUX-01", "MUX-07")


@check("USE-01", needs=(*SHAPE, "USE-04"), not_beside=("n",))
async def completion_tokens_are_counted(ctx: Context) -> None:
    """As many as were sent."""
    for max_tokens in (1, 5):
        stream = await ctx.generate(ctx.request(max_tokens=max_tokens))
        seen = stream.usage.completion_tokens
        expect_equal(seen, len(stream.tokens), "completion_tokens is not the number of ids sent")


@check("USE-02", needs=(*SHAPE, "USE-04"), counts_prompt=True)
async def prompt_tokens_are_counted(ctx: Context) -> None:
    """As many as the request had, also where it begins twice with what templates begin with."""
    beginnings = [[token] * 2 for token in _special(ctx)]
    for prompt in (ctx.prompt(1), ctx.prompt(11), *(twice + ctx.prompt(3) for twice in beginnings)):
        stream = await ctx.generate(ctx.request(token_ids=prompt, max_tokens=1))
        expect_equal(stream.usage.prompt_tokens, len(prompt), "prompt_tokens is not the length of token_ids")


def _special(ctx: Context) -> list[int]:
    """Ends of sequence and their neighbours, and both ends of the vocabulary: where special tokens stand."""
    size = ctx.config.vocab_size
    beside_ends = {token + step for token in ctx.config.eos_token_ids for step in (-1, 0, 1)}
    return sorted(token for token in beside_ends | {0, 1, size - 1} if 0 <= token < size)


@check("USE-03", needs=(*SHAPE, "USE-04"))
async def the_total_is_the_sum(ctx: Context) -> None:
    """Of what the usage itself says."""
    usage = (await ctx.generate(ctx.request())).usage
    expect_equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens is no sum")


@check("USE-04", needs=SHAPE)
async def usage_is_on_the_last_terminal(ctx: Context) -> None:
    """There and nowhere else. Also beside log-probabilities of the prompt, where they are served."""
    streams = [await ctx.generate(ctx.request())]
    if ctx.capabilities.prompt_logprobs:
        rows = await ctx.start(ctx.request(prompt_logprobs=1)).end()
        streams += [rows] if rows.exchange.is_ok and rows.terminals else []
    for stream in streams:
        outputs = list(enumerate(stream.outputs))
        places = [number for number, output in outputs if output.HasField("completion_usage")]
        last = [number for number, output in outputs if output.finish_reason][-1]
        expect_equal(places, [last], "completion_usage is not on the last terminal output alone")


@check("USE-04", variant="failed", needs=(*SHAPE, "USE-04"))
async def failures_have_no_usage(ctx: Context) -> None:
    """Of a request that fails after its first token nothing is the last terminal."""
    stream = await failed_later(ctx)
    expect(
        stream.exchange.is_ok or not any(output.HasField("completion_usage") for output in stream.outputs),
        "a request that ended with a status has a completion_usage",
        seen=stream.exchange.status,
    )


@check(
    "USE-05",
    needs=(*SHAPE, "STR-04", "USE-01", "USE-02", "ABO-01"),
    alone=True,
    not_beside=("n",),
)
async def aborted_requests_are_counted(ctx: Context) -> None:
    """Up to the abort; events do not count."""
    stream = await ctx.start(ctx.long_request(annotations=known_keys(ctx))).first_token()
    await ctx.client.abort([stream.request.request_id])
    await stream.end()
    expect(stream.choice.terminal, "an aborted request has no terminal output", seen=stream.exchange.status)
    expect_equal(stream.usage.completion_tokens, len(stream.tokens), "the usage is not that of what was sent")


@check("USE-05", variant="multiplexed", gate="multiplexed", phase=Phase.LOAD, needs=OVER_A_STREAM, alone=True)
async def aborted_handles_are_counted(ctx: Context) -> None:
    """Several choices of one handle, aborted on its stream after each had a token."""
    count = ctx.choices(2)
    async with open_stream(ctx) as stream:
        stream.submit(1, ctx.long_request(n=count))
        handle = stream.handle(1)
        await stream.until(lambda: all(choice.tokens for choice in _choices(handle, count)))
        stream.send(abort=(1,))
        await stream.until_ended(1)
        expect(handle.terminals, "an aborted handle has no terminal output", seen=handle.status)
        sent = sum(len(choice.tokens) for choice in _choices(handle, count))
        seen = handle.usage.completion_tokens
        expect_equal(seen, sent, "the usage of an aborted handle is not that of what was sent")


@check(
    "USE-05",
    variant="ended",
    gate="resume",
    needs=(*SHAPE, "USE-05", "SEQ-01", "SEQ-02", "RES-01", "RES-04"),
    alone=True,
    not_beside=("n", "resume"),
)
async def choices_that_have_ended_are_counted(ctx: Context) -> None:
    """Two choices, one of which lacks a single token: it has ended when the other one is aborted."""
    if ctx.choices(2) < 2:
        raise NotApplicable("Limits.max_n is 1")
    request = ctx.lasting_request(ctx.bounds.reaction, n=2)
    handed_in = ctx.prompt(request.request.stop_conditions.max_tokens - 1, salt=1)
    resume = pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=handed_in)], attempt=1)
    stream = ctx.start(requests.change(request, resume=resume))
    while not (stream.choice.terminal and 1 in stream.choices):
        if await anext(stream.call, None) is None:
            raise NotApplicable(f"the request ended before its abort: {stream.exchange.status}")
    await ctx.client.abort([request.request_id])
    await stream.end()
    other = stream.choices[1]
    if other.reason_name != "CANCELLED":
        raise NotApplicable("the request ends before it can be aborted")
    sent = len(handed_in) + len(stream.tokens) + len(other.tokens)
    seen = stream.usage.completion_tokens
    expect_equal(seen, sent, "the usage of an aborted request leaves out a choice that had ended")


@check(
    "USE-05",
    variant="queued",
    gate="resume",
    phase=Phase.LOAD,
    needs=(*SHAPE, "USE-05", "RES-01", "RES-04", "INF-08", "ABO-05"),
    alone=True,
    not_beside=("n", "resume"),
)
async def what_was_handed_in_is_counted(ctx: Context) -> None:
    """A request that goes on with a few tokens is aborted while it waits."""
    handed_in = ctx.prompt(HANDED_IN, salt=1)
    resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=handed_in)], attempt=1)
    request = requests.change(ctx.long_request(), resume=resume)
    async with saturated(ctx) as running:
        stream = await queued(ctx, running, request)
        await ctx.client.abort([request.request_id])
        await stream.end()
    if not stream.terminals:
        raise NotApplicable(f"who is aborted in the queue has no usage: {stream.exchange.status}")
    sent, seen = len(handed_in) + len(stream.tokens), stream.usage.completion_tokens
    expect_equal(seen, sent, "the usage of a request that waited leaves out what was handed in")


def _choices(handle: Handle, count: int) -> list[Choice]:
    return [handle.by_choice.get(index, Choice(index)) for index in range(count)]


@negative("prefix_cache")
async def there_is_no_cache_to_reset(ctx: Context) -> None:
    """The RPC that empties it."""
    request = pb.ResetPrefixCacheRequest()
    require_refusal(await ctx.client.ask("AdminService.ResetPrefixCache", request), LEFT_OUT)


@check(
    "INF-09",
    variant="reset",
    gate="prefix_cache",
    phase=Phase.LOAD,
    needs=(*SHAPE, "INF-09", "USE-06", "CAN-01"),
    alone=True,
    in_company=False,
    counts_prompt=True,
)
async def the_cache_can_be_emptied(ctx: Context) -> None:
    """Beside a request that holds some of it, and idle: what was cached is gone, and nothing else.

    An engine that can only drop everything says of the first that no block was freed.
    """
    prompt, size = ctx.fresh_prompt(BLOCKS), ctx.config.kv_cache_block_size
    await ctx.client.ask("AdminService.ResetPrefixCache", pb.ResetPrefixCacheRequest())
    for is_busy in (True, False):
        await _cached(ctx, prompt)
        await ctx.idle()
        holder = ctx.start(ctx.long_request(token_ids=ctx.fresh_prompt(BLOCKS))) if is_busy else None
        if holder:
            await holder.first_token()
        reset = await ctx.client.ask("AdminService.ResetPrefixCache", pb.ResetPrefixCacheRequest())
        freed = sum(cast(pb.ResetPrefixCacheResponse, each).blocks_freed for each in reset.messages)
        if not is_busy:
            expect(reset.is_ok, "the cache of an idle engine cannot be reset", seen=reset.status)
        if is_busy and size:
            most = ceil((len(prompt) + requests.OUTPUT_TOKENS) / size)
            message = "ResetPrefixCache counts more blocks than nobody held"
            expect(freed <= most, message, expected=f"at most {most}", seen=freed)
        if freed or not is_busy:
            found = await _cached(ctx, prompt)
            expect_equal(found, 0, "a prompt is cached after ResetPrefixCache")
        if holder:
            holder.cancel()
        await ctx.idle()


@check_in(
    "USE-06",
    PLAIN,
    CHOICES,
    MULTIPLEXED,
    needs=(*SHAPE, "USE-02"),
    alone=True,
    counts_prompt=True,
    not_beside=(PROBE,),
)
async def cached_tokens_are_told(ctx: Context, shape: Shape) -> None:
    """A prompt of some blocks past the cache, then into it, again, and once more past it.

    Again with what is for routers alone. Then another prompt, and one that is put together of both: only its
    beginning was computed before.
    """
    block, prompt = ctx.block_size, ctx.fresh_prompt(BLOCKS)
    await _cached(ctx, prompt, shape, bypass=True)
    first = await _cached(ctx, prompt, shape)
    expect_equal(first, 0, "what came with bypass_prefix_cache is cached")
    for changes in NOTHING, FOR_OTHERS:
        again = await _cached(ctx, prompt, shape, changes=changes)
        beside = f" beside {', '.join(changes)}" if changes else ""
        message = f"a repeated prompt has no cached block{beside}"
        expect(again >= block, message, expected=f"at least {block}", seen=again)
    around = await _cached(ctx, prompt, shape, bypass=True)
    expect_equal(around, 0, "bypass_prefix_cache does not bypass it")
    other = ctx.fresh_prompt(BLOCKS)
    await _cached(ctx, other, shape)
    mixed = [*other[:block], *prompt[block:]]
    shared, cached = requests.num_alike(mixed, other), await _cached(ctx, mixed, shape)
    message = "blocks are taken for cached behind others than they were computed behind"
    expect(cached <= shared, message, expected=f"at most {shared}", seen=cached)


@check("USE-07", needs=(*SHAPE, "USE-06"), alone=True, counts_prompt=True, not_beside=(PROBE,))
async def salts_part_the_cache(ctx: Context) -> None:
    """A prompt under one salt, some that are nearly it, and none; then the first again. And none first."""
    await _are_parted(ctx)


@check(
    "USE-07",
    variant="adapter",
    gate="lora",
    needs=(*SHAPE, "USE-07", "LOR-01"),
    alone=True,
    counts_prompt=True,
    not_beside=(PROBE,),
)
async def salts_part_the_cache_of_an_adapter(ctx: Context) -> None:
    """The same of requests with an adapter."""
    async with loaded(ctx, ctx.session.options.sources(1)) as (name,):
        await _are_parted(ctx, name)


async def _are_parted(ctx: Context, adapter: str = "") -> None:
    resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=ctx.prompt(1))], attempt=1)
    goes_on: Changes = {"resume": resume} if ctx.capabilities.resume else NOTHING
    tenants = (TENANT + "a", dict.fromkeys(OTHER_TENANTS, NOTHING))
    for first, others in (tenants, ("", {TENANT + "a": NOTHING, TENANT + "b": goes_on})):
        block, prompt = ctx.block_size, ctx.fresh_prompt(BLOCKS)
        await _cached(ctx, prompt, salt=first, adapter=adapter)
        for other, changes in others.items():
            cached = await _cached(ctx, prompt, salt=other, adapter=adapter, changes=changes)
            message = f"a request with cache_salt {other!r} shares what another one has cached"
            expect_equal(cached, 0, message)
        again = await _cached(ctx, prompt, salt=first, adapter=adapter)
        message = "a repeated prompt of equal cache_salt has no cached block"
        expect(again >= block, message, expected=f"at least {block}", seen=again)


async def _cached(
    ctx: Context,
    prompt: list[int],
    shape: Shape = PLAIN,
    *,
    bypass: bool = False,
    salt: str = "",
    adapter: str = "",
    changes: Changes = NOTHING,
) -> int:
    if adapter:
        changes = {**changes, "lora_name": adapter}
    request = ctx.request(token_ids=prompt, bypass_prefix_cache=bypass, cache_salt=salt, **changes)
    cached = (await ask(ctx, shape, request)).usage.prompt_tokens_details.cached_tokens
    expect(
        cached <= len(prompt), "more tokens are cached than the prompt has", expected=len(prompt), seen=cached
    )
    return cached
