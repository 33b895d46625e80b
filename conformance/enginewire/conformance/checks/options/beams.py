"""INF-09 for beam search: a search over two tokens, made once more out of rows that plain requests have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginewire.conformance.checks.options.distributions.draws import alternatives, drawn
from enginewire.conformance.checks.options.distributions.position import TIED
from enginewire.conformance.checks.options.filters import ROWS
from enginewire.conformance.running.registry import check
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

BEAMS: Final = 3


@check("INF-09", variant="beams", gate="beam_search", needs=(*ROWS, "INF-09", "SEQ-02"))
async def beams_are_the_best(ctx: Context) -> None:
    """One beam, which is the greedy answer, and several."""
    width = min(ctx.choices(BEAMS), alternatives(ctx) if ctx.capabilities.logprobs else 0)
    if width < 1:
        raise NotApplicable("without logprobs nobody knows what a search has to find")
    prompt = ctx.prompt(salt=520)
    for beams in sorted({1, width}):
        scores: dict[tuple[int, ...], float] = {
            (first, second): value + more
            for first, value in (await _likely(ctx, prompt, beams)).items()
            for second, more in (await _likely(ctx, [*prompt, first], beams)).items()
        }
        best = sorted(scores.values(), reverse=True)[:beams]
        stream = await ctx.generate(
            ctx.request(token_ids=prompt, use_beam_search=True, n=beams, max_tokens=2, temperature=None)
        )
        found = [tuple(choice.tokens) for _, choice in sorted(stream.choices.items())]
        expect_equal(len(set(found)), beams, f"{beams} beams are not so many different answers")
        for place, (answer, score) in enumerate(zip(found, best, strict=True)):
            is_due = abs(scores.get(answer, float("-inf")) - score) <= 2 * TIED
            message = f"beam {place} of {beams} is not the next best answer"
            due = [tokens for tokens, value in scores.items() if value == score]
            expect(is_due, message, expected=due, seen=answer)
    search = ctx.request(use_beam_search=True, temperature=None)
    await ctx.rejects({"temperature": 0.5}, good=search)
    for seed in (0, 7) if ctx.capabilities.seed else ():
        await ctx.rejects({"seed": seed}, good=search)


async def _likely(ctx: Context, prompt: Sequence[int], count: int) -> dict[int, float]:
    """The most probable next tokens."""
    row = (await drawn(ctx, token_ids=list(prompt), max_tokens=1, n=None, temperature=1.0))[0][0]
    return {token: row.known[token] for token in sorted(row.known, key=lambda each: -row.known[each])[:count]}
