"""LIM: how many tokens there are."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.shapes import CHOICES, PLAIN, Shape, ask, check_in
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import INVALID, Context, require_refusal
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import expect, expect_equal

UINT32_MAX: Final = 2**32 - 1
ROOM: Final = 8
"""Tokens left in the window by the prompts that fill it."""


@check("LIM-01", needs=SHAPE)
async def max_tokens_holds(ctx: Context) -> None:
    """Small and larger numbers, odd ones among them."""
    for count in sorted({ctx.tokens(count) for count in (1, 2, 7, 33)}):
        stream = await ctx.generate(ctx.request(max_tokens=count))
        expect(
            len(stream.tokens) <= count,
            "more than max_tokens tokens",
            expected=count,
            seen=len(stream.tokens),
        )


@check("LIM-02", needs=SHAPE)
async def max_tokens_ends_with_length(ctx: Context) -> None:
    """Nothing else can have ended it."""
    stream = await ctx.generate(ctx.request(max_tokens=5))
    expect_equal(stream.choice.reason_name, "LENGTH", "max_tokens ended the choice with another reason")


@check("LIM-03", needs=(*SHAPE, "LIM-01"))
async def one_token_is_one_token(ctx: Context) -> None:
    """Neither none nor two."""
    stream = await ctx.generate(ctx.request(max_tokens=1))
    expect_equal(len(stream.tokens), 1, "max_tokens 1 did not give one token")


@check("LIM-04", needs=SHAPE)
async def no_tokens_are_refused(ctx: Context) -> None:
    """0 is not 'unlimited'."""
    await ctx.rejects({"max_tokens": 0})


@check("LIM-05", needs=(*SHAPE, "INF-04"))
async def the_window_bounds(ctx: Context) -> None:
    """Without max_tokens."""
    stream, room = await _filling(ctx)
    seen = len(stream.tokens)
    expect(seen <= room, "the output goes beyond the window", expected=room, seen=seen)


@check("LIM-06", needs=(*SHAPE, "LIM-01"))
async def min_tokens_holds(ctx: Context) -> None:
    """A token known to come early as stop and as end of sequence, in each of several choices."""
    greedy = await ctx.greedy(least=5)
    early, most = greedy.tokens[0], len(greedy.tokens)
    several = {"n": ctx.choices(2)} if ctx.choices(2) > 1 else {}
    for stop in ({"stop_token_ids": [early]}, {"eos_token_ids": [early], "ignore_eos": False}):
        request = ctx.request(token_ids=greedy.prompt, min_tokens=5, max_tokens=most, **stop, **several)
        for choice in (await ctx.generate(request)).choices.values():
            message, seen = "a stop condition applied below min_tokens", len(choice.tokens)
            expect(seen >= 5, message, expected="at least 5 tokens", seen=seen)


@check("LIM-07", needs=SHAPE)
async def min_above_max_is_refused(ctx: Context) -> None:
    """One more than there may be."""
    good = ctx.request(max_tokens=4)
    await ctx.rejects({"min_tokens": 5}, good=good)


@check("LIM-08", needs=(*SHAPE, "INF-04", "LIM-05"))
async def a_full_window_is_length(ctx: Context) -> None:
    """Not an error."""
    stream, _ = await _filling(ctx)
    await stream.ok()
    expect_equal(stream.choice.reason_name, "LENGTH", "a full window ended the choice with another reason")


@check_in("LIM-08", CHOICES, needs=(*SHAPE, "INF-04", "LIM-05"))
async def a_full_window_is_length_for_each(ctx: Context, shape: Shape) -> None:
    """Without max_tokens, for every choice."""
    prompt, room = ctx.filling_prompt(ROOM)
    for choice in (await ask(ctx, shape, ctx.request(token_ids=prompt, max_tokens=None))).choices.values():
        seen = f"{len(choice.tokens)} tokens, {choice.reason_name}"
        expect_equal(
            seen, f"{room} tokens, LENGTH", f"choice {choice.index} of a full window has another end"
        )


@check_in("LIM-09", PLAIN, CHOICES, needs=(*SHAPE, "INF-04", "LIM-02", "LIM-08"))
async def more_than_fits_is_clamped(ctx: Context, shape: Shape) -> None:
    """One more than is left, as many as the window has, and the most that the field can say."""
    prompt, room = ctx.filling_prompt(ROOM)
    for asked in (room + 1, ctx.context_length(), UINT32_MAX):
        request = requests.change(ctx.request(token_ids=prompt), max_tokens=asked)
        for choice in (await ask(ctx, shape, request)).choices.values():
            seen = f"{len(choice.tokens)} tokens, {choice.reason_name}"
            message = f"max_tokens {asked} with room for {room} has another end"
            expect_equal(seen, f"{room} tokens, LENGTH", message)


async def _filling(ctx: Context) -> tuple[Stream, int]:
    """A request without max_tokens that fills the window; stopped when it goes on beyond its room."""
    prompt, room = ctx.filling_prompt(ROOM)
    stream = ctx.start(ctx.request(token_ids=prompt, max_tokens=None))
    async for _ in stream.call:
        if len(stream.tokens) > room:
            return stream, room
    return await stream.end(), room


@check("LIM-12", needs=(*SHAPE, "INF-04", "LIM-06", "LIM-09"))
async def the_minimum_has_room(ctx: Context) -> None:
    """As many tokens as are left of the window, and one more, with a maximum and without."""
    prompt, room = ctx.filling_prompt(ROOM)
    good = ctx.request(token_ids=prompt, max_tokens=room, min_tokens=room)
    stream = await ctx.generate(good)
    expect_equal(len(stream.tokens), room, "a minimum that fits the window is not kept")
    for most in (2 * room, None):
        more = {"max_tokens": most, "min_tokens": room + 1}
        long = requests.change(good, request_id=ctx.request().request_id, **more)
        require_refusal(await ctx.refused(long), INVALID, reason=pb.ERROR_REASON_CONTEXT_EXCEEDED)
