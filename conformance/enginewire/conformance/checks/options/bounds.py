"""LIM-10, LIM-11, ERR-04, ERR-05: limits from both sides, and lists to their last entry.

What is bounded is in the tables BOUNDS and RANGES of `session.features`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.features import BOUNDS, GUIDE, RANGES, Bound
from enginewire.conformance.session.fields import without_indexes
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import expect, expect_equal

SLOTS: Final = 4
SAME: Final = 1e-3
LENGTHS: Final = (1, 17)
"""Of lists, beside the most that there may be."""

LISTS: Final = (
    *SHAPE,
    "STP-01",
    "STP-04",
    "LIM-03",
    "SAM-09",
    "SAM-13",
    "SAM-14",
    "SAM-17",
    "LOG-02/selected",
)
"""What the end of a list decides has to work with a short one."""

ENDS: Final = {
    "stop_token_ids": "STOP",
    "stop_token_ids_visible": "STOP",
    "stop_token_ids_hidden": "EOS",
    "eos_token_ids": "EOS",
}


@check("LIM-10", needs=(*SHAPE, "INF-05", "INF-09/limits", "ERR-05"))
async def bounds_hold_on_both_sides(ctx: Context) -> None:
    """As much of each thing as there may be is served; one more is refused, if the engine reads it."""

    async def both_sides(bound: Bound) -> None:
        most = bound.most(ctx.config)
        if bound.is_of_different_ids and most >= ctx.config.vocab_size:
            return
        good = ctx.request(max_tokens=1, **{bound.field: bound.make(most)})
        if bound.is_opaque:
            await ctx.generate(good)
        else:
            await _rejects(ctx, bound, most + 1, good)

    await _some_at_a_time(both_sides(bound) for bound in BOUNDS if bound.is_offered(ctx.config))
    if (most := ctx.limits.max_prompt_tokens) and most < ctx.room(1):
        good = ctx.request(token_ids=ctx.prompt(most), max_tokens=1)
        await ctx.rejects({"token_ids": ctx.prompt(most + 1)}, good=good)


@check("LIM-11", needs=(*SHAPE, "LIM-10"))
async def opaque_fields_are_bounded(ctx: Context) -> None:
    """One more of each thing that the engine need not read."""

    async def one_more(bound: Bound) -> None:
        await _rejects(ctx, bound, bound.most(ctx.config) + 1)

    opaque = [bound for bound in BOUNDS if bound.is_opaque and bound.is_offered(ctx.config)]
    await _some_at_a_time(map(one_more, opaque))


@check("LIM-10", variant="lists", needs=(*LISTS, "LIM-10"))
async def lists_count_to_their_last_entry(ctx: Context) -> None:
    """One that decides, at the end of short lists and of the longest."""
    greedy = await ctx.greedy()
    place = greedy.first_new()
    lists = {bound.field: bound.most(ctx.config) for bound in BOUNDS if bound.is_offered(ctx.config)}
    checks = [_last_ends(ctx, greedy, place, field, length) for field in ENDS for length in LENGTHS]
    checks += [_last_ends(ctx, greedy, place, field, lists[field], lists) for field in ENDS]
    deciding = (_last_is_allowed, _last_is_bad, _last_is_biased, _last_is_told)
    names = ("allowed_token_ids", "bad_words_token_ids", "logit_bias", "logprob_token_ids")
    for name, decides in zip(names, deciding, strict=True):
        if name in lists and (name != "logprob_token_ids" or ctx.capabilities.logprobs):
            most = min(lists[name], ctx.config.vocab_size)
            checks += [decides(ctx, greedy, length) for length in {*LENGTHS, most} if length <= most]
    await _some_at_a_time(checks)


@check("ERR-04", variant="longest", needs=(*SHAPE, "INF-04", "LIM-03"))
async def the_longest_prompt_is_served(ctx: Context) -> None:
    """One token less than the window has, or as many as there may be."""
    most = min(ctx.context_length(), ctx.longest_prompt())
    stream = await ctx.generate(ctx.request(token_ids=ctx.prompt(most), max_tokens=1))
    expect_equal(len(stream.tokens), 1, f"a prompt of {most} tokens, which fit, has another answer")


@check("ERR-05", variant="ends", needs=SHAPE)
async def the_ends_of_ranges_are_served(ctx: Context) -> None:
    """The largest and the smallest value of each option."""

    async def served(name: str, value: Value) -> None:
        request = ctx.request(**{"max_tokens": 2, "temperature": 1.0, name: value})
        stream: Stream = await ctx.start(request).end()
        message = f"{name} of {value} is within its range, but not served"
        expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)

    ends = [*RANGES, ("top_k", "", (ctx.config.vocab_size,))]
    await _some_at_a_time(
        served(name, value)
        for name, capability, values in ends
        if _is_offered(ctx, capability)
        for value in values
    )


async def _rejects(ctx: Context, bound: Bound, count: int, good: pb.GenerateRequest | None = None) -> None:
    """So much of a thing is refused, and its field named, or what is inside of it."""
    exchange = await ctx.rejects({bound.field: bound.make(count)}, good=good, field="")
    seen = without_indexes(exchange.detail.field) if exchange.detail else "no ErrorDetail"
    message, path = "the refusal names another field", GUIDE if bound.mode else bound.rule.path
    expect(f"{seen}.".startswith(f"{path}."), message, expected=path, seen=seen)


def _is_offered(ctx: Context, capability: str) -> bool:
    return not capability or bool(getattr(ctx.capabilities, capability))


async def _some_at_a_time(checks: Iterable[Coroutine[object, object, None]]) -> None:
    slots = asyncio.Semaphore(SLOTS)

    async def one(due: Coroutine[object, object, None]) -> None:
        async with slots:
            await due

    await asyncio.gather(*map(one, checks))


def _others(ctx: Context, greedy: Greedy, count: int) -> list[int]:
    """Ids that the greedy run does not have; the same ones again where there are too few."""
    met = {*greedy.tokens, *greedy.prompt, *ctx.config.eos_token_ids}
    free = [token for token in range(min(ctx.config.vocab_size, 4 * count + len(met))) if token not in met]
    return [free[place % len(free)] for place in range(count)] if free else []


async def _last_ends(
    ctx: Context, greedy: Greedy, place: int, field: str, length: int, full: Mapping[str, int] | None = None
) -> None:
    """Beside `full` lists of ids that end a choice in the same way, and do not come."""
    ids = [*_others(ctx, greedy, length - 1), greedy.tokens[place]]
    never = _others(ctx, greedy, 1)
    changes: dict[str, Value] = {"eos_token_ids": never, field: ids, "ignore_eos": ENDS[field] == "STOP"}
    for other, most in (full or {}).items():
        if other != field and ENDS.get(other) == ENDS[field]:
            changes[other] = _others(ctx, greedy, most)
    request = ctx.request(token_ids=greedy.prompt, max_tokens=len(greedy.tokens), **changes)
    stream = await ctx.generate(request)
    if stream.tokens[:place] != greedy.tokens[:place] or greedy.tokens[place] not in stream.tokens:
        return  # rounded to another answer: nothing to judge here
    message = f"the last of {length} {field} does not end its choice"
    expect_equal((len(stream.tokens), stream.choice.reason_name), (place + 1, ENDS[field]), message)


async def _last_is_allowed(ctx: Context, greedy: Greedy, length: int) -> None:
    ids = [*_others(ctx, greedy, length - 1), greedy.tokens[0]]
    first = await _first(ctx, greedy, allowed_token_ids=ids)
    expect_equal(first, greedy.tokens[0], f"the last of {length} allowed_token_ids does not come")


async def _last_is_bad(ctx: Context, greedy: Greedy, length: int) -> None:
    others = [pb.TokenSequence(token_ids=[token] * 3) for token in _others(ctx, greedy, length - 1)]
    words = [*others, pb.TokenSequence(token_ids=greedy.tokens[:1])]
    await _does_not_come(ctx, greedy, f"the last of {length} bad words", bad_words_token_ids=words)


async def _last_is_biased(ctx: Context, greedy: Greedy, length: int) -> None:
    others = dict.fromkeys(_others(ctx, greedy, length - 1), -0.5)
    biases = {**others, greedy.tokens[0]: -100.0}
    entries = [pb.LogitBias(token_id=token, bias=bias) for token, bias in biases.items()]
    await _does_not_come(ctx, greedy, f"a token with the last of {length} biases", logit_bias=entries)


async def _last_is_told(ctx: Context, greedy: Greedy, length: int) -> None:
    ids = [*_others(ctx, greedy, length - 1), greedy.tokens[0]]
    request = ctx.request(token_ids=greedy.prompt, max_tokens=1, logprobs=0, logprob_token_ids=ids)
    stream = await ctx.generate(request)
    table = stream.outputs[0].logprobs
    expect_equal(len(table.selected_logprobs), length, "not one value per id of logprob_token_ids")
    if stream.tokens == greedy.tokens[:1]:
        told, value = table.selected_logprobs[-1], table.token_logprobs[0]
        message = f"the last of {length} logprob_token_ids has not the value of its token"
        expect(abs(told - value) <= SAME, message, expected=f"{value:.6f}", seen=f"{told:.6f}")


async def _does_not_come(ctx: Context, greedy: Greedy, what: str, **changes: Value) -> None:
    first = await _first(ctx, greedy, **changes)
    expect(first != greedy.tokens[0], f"{what} comes", expected=f"no {greedy.tokens[0]}", seen=first)


async def _first(ctx: Context, greedy: Greedy, **changes: Value) -> int:
    request = ctx.request(token_ids=greedy.prompt, max_tokens=1, **changes)
    tokens = (await ctx.generate(request)).tokens
    expect_equal(len(tokens), 1, "max_tokens 1 did not give one token")
    return tokens[0]
