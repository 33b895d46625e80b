"""The runs that cases repeat: plain greedy ones, one that fills the window, and some under other options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Changes, Target
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import PROMPT_TOKENS
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.stream import Choice
from enginewire.conformance.wire.violation import NotApplicable, expect

TOKENS: Final = 24
BLOCKS: Final = 2
SALTS: Final = 7000

SEEDED: Final[Changes] = {"temperature": 1.0, "seed": 7}
"""What gives choices that differ, and end at different times."""

FEWEST: Final = 4
"""Tokens of a greedy run that tells anything about where to stop."""

LONGEST: Final = 4096
"""Tokens of a window that is filled: a longer prompt takes long itself."""


async def target_of(ctx: Context, client: Client) -> Target:
    """Plain runs, of a short prompt, of one with full blocks, and of one token."""
    lengths = [length for length in (PROMPT_TOKENS, BLOCKS * ctx.block_size + 1, 1) if _fits(ctx, length)]
    if not lengths:
        raise NotApplicable("the window has no room for the greedy runs")
    runs = [await _run(ctx, client, length, SALTS + number) for number, length in enumerate(lengths)]
    return Target(ctx, client, runs, Offer.of(ctx.config))


async def at_the_end_of_the_window(ctx: Context, client: Client) -> Target:
    """One run whose prompt leaves just the room for it; NotApplicable where that is too long."""
    length = ctx.context_length() - TOKENS
    if not PROMPT_TOKENS <= length <= LONGEST - TOKENS:
        raise NotApplicable("the window is too long to be filled")
    ctx.tokens(TOKENS, length, least=TOKENS)
    return Target(ctx, client, [await _run(ctx, client, length, SALTS - 1)], Offer.of(ctx.config))


async def under_options(ctx: Context, client: Client) -> Target:
    """Runs of full blocks under options that change which tokens come, the same for all their cases."""
    length = BLOCKS * ctx.block_size + 1
    if not _fits(ctx, length):
        raise NotApplicable("the window has no room for full blocks")
    under, offer = list(_options(ctx)), Offer.of(ctx.config)
    runs = [await _run(ctx, client, length, SALTS - 2, **changes) for changes in under]
    if ctx.capabilities.seed:
        under.append(SEEDED)
        several = {"n": offer.most_choices} if offer.most_choices > 1 else {}
        runs.append(await _run(ctx, client, length, SALTS - 2, **SEEDED, **several))
    return Target(ctx, client, runs, offer, under)


def _options(ctx: Context) -> Iterator[Changes]:
    can, some = ctx.capabilities, ctx.prompt(TOKENS, salt=SALTS)
    if can.penalties:
        yield {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.4}
        # Alone and strong: whatever of the prompt it leaves out then changes some token.
        yield {"repetition_penalty": 2.0}
    if can.logit_bias:
        yield {"logit_bias": [pb.LogitBias(token_id=token, bias=2.0) for token in sorted(set(some))]}
    if can.allowed_token_ids:
        yield {"allowed_token_ids": sorted(set(some))}
    if can.bad_words:
        yield {"bad_words_token_ids": [pb.TokenSequence(token_ids=[token]) for token in sorted(set(some))]}


async def _run(ctx: Context, client: Client, length: int, salt: int, **changes: object) -> Greedy:
    """An answer that comes again to a prompt of so many tokens."""
    count = ctx.tokens(TOKENS, length)
    request = ctx.request(token_ids=ctx.prompt(length, salt=salt), max_tokens=count, **changes)
    stream = await ctx.start(request, client=client).ok()
    message = "a run past every end of sequence has another length"
    several = [stream.choices.get(index, Choice(index)).tokens for index in range(1, _choices_of(request))]
    for tokens in (stream.tokens, *several):
        expect(len(tokens) == count, message, expected=count, seen=len(tokens))
    return Greedy(list(request.request.token_ids), stream.tokens, tuple(several))


def _choices_of(request: pb.GenerateRequest) -> int:
    return max(request.request.sampling_options.n, 1)


def _fits(ctx: Context, prompt_tokens: int) -> bool:
    bounded = ctx.config.HasField("context_length")
    return not bounded or prompt_tokens + FEWEST <= ctx.config.context_length
