"""STP: the limit of thinking sections.

Nothing says which tokens open and close a section, so the kit looks: of many ids in one prompt some token
leaves one open, and with a limit of 0 the token that closes it comes at once, whatever is forced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire.conformance.oracle.repetition import only
from enginewire.conformance.running.registry import WHOLE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect_equal

TOGETHER: Final = 256
"""Ids in one prompt."""
PROMPTS: Final = 16
LIMITS: Final = (0, 1, 3)


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens that open and close a section, and one that does neither."""

    opening: int
    closing: int
    other: int


@check("STP-09", needs=(*WHOLE, "LIM-03"), counts_prompt=True)
async def each_section_has_its_limit(ctx: Context) -> None:
    """One that the prompt leaves open, two of the answer, and one behind one that the prompt has closed."""
    marks = await ctx.once("marks of thinking", lambda: _marks(ctx))
    opening, closing, other = marks.opening, marks.closing, marks.other
    plain = [token for token in ctx.prompt() if token not in (opening, closing)]
    for limit in LIMITS:
        section = [*[opening] * (limit + 1), closing]
        for prompt, forced, due in (
            ([*plain, opening], other, [*[other] * limit, closing, other]),
            (plain, opening, 2 * section),
            ([opening, *plain, closing], opening, section),
        ):
            request = ctx.request(
                token_ids=prompt, max_tokens=len(due), max_thinking_tokens=limit, **only(ctx, forced)
            )
            seen = (await ctx.generate(request)).tokens
            expect_equal(seen, due, f"a thinking section is not closed behind {limit} tokens")


async def _marks(ctx: Context) -> Marks:
    """What the target takes for them; a Violation when none of all its tokens opens a section."""
    some = ctx.prompt()[:2]
    if not only(ctx, *some):
        raise NotApplicable("without logit_bias and allowed_token_ids no token can be made to come")
    for forced in some:
        for ids in _pieces(ctx):
            closing = await _forced_out(ctx, ids, forced)
            if closing is not None:
                opening = await _opening(ctx, ids, forced)
                return Marks(opening, closing, _neither(ctx, opening, closing))
    if ctx.config.vocab_size > PROMPTS * _together(ctx):
        raise NotApplicable("no token that opens a thinking section is among the last of the vocabulary")
    raise Violation("of no token of the vocabulary max_thinking_tokens closes the section that it opens")


def _pieces(ctx: Context) -> Iterator[list[int]]:
    """Prompts with the ids of a part of the vocabulary each, its end first, in one direction and the other.

    In one of the two what opens a section comes behind what closes it, which mostly has the higher id.
    """
    size, every = _together(ctx), range(ctx.config.vocab_size)
    falling = [token for token in reversed(every) if token not in ctx.config.eos_token_ids]
    pieces = [falling[start : start + size] for start in range(0, len(falling), size)][:PROMPTS]
    yield from pieces
    yield from (ids[::-1] for ids in pieces)


def _together(ctx: Context) -> int:
    return min(TOGETHER, ctx.room(1))


async def _forced_out(ctx: Context, prompt: Sequence[int], forced: int) -> int | None:
    """The token that comes instead of the one that is forced; None where that comes."""
    request = ctx.request(token_ids=prompt, max_tokens=1, max_thinking_tokens=0, **only(ctx, forced))
    token = (await ctx.generate(request)).tokens[0]
    return token if token != forced else None


async def _opening(ctx: Context, ids: Sequence[int], forced: int) -> int:
    """The one of these ids that opens a section, which none behind it closes."""
    closed, opened = 0, len(ids)
    while opened - closed > 1:
        middle = (closed + opened) // 2
        if await _forced_out(ctx, ids[:middle], forced) is None:
            closed = middle
        else:
            opened = middle
    return ids[opened - 1]


def _neither(ctx: Context, *marks: int) -> int:
    return next(token for token in ctx.prompt() if token not in marks)
