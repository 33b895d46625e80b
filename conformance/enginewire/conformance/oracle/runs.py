"""The runs that cases repeat: plain greedy ones, one that fills the window, and some under other options.

Each is made alone: what came then has to come beside any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Changes, Row, Target, rows_in
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.oracle.repetition import repetition
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import PROMPT_TOKENS
from enginewire.conformance.session.sizes import most_alternatives
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.stream import Choice, num_choices
from enginewire.conformance.wire.violation import NotApplicable, expect

TOKENS: Final = 24
BLOCKS: Final = 2
SALTS: Final = 7000

SEEDED: Final[Changes] = {"temperature": 1.0, "seed": 7}
"""What gives choices that differ, and end at different times."""

TOP: Final = 2
"""Alternatives that are told of each token of a run."""

FEWEST: Final = 4
"""Tokens of a greedy run that tells anything about where to stop."""

LONGEST: Final = 4096
"""Tokens of a window that is filled: a longer prompt takes long itself."""


Told = Sequence[Sequence[Row]]
"""What was told of a run: for each choice, of each of its tokens."""


async def target_of(ctx: Context, client: Client) -> Target:
    """Plain runs, of a short prompt, of one with full blocks, and of one token."""
    return await _plain(ctx, client, {})


async def of_all_kinds(ctx: Context, client: Client) -> tuple[Target, int]:
    """The plain runs, how many these are, and behind them runs under options; with what is told of them."""
    asked: Changes = (
        {"logprobs": min(TOP, most_alternatives(ctx.config))} if ctx.capabilities.logprobs else {}
    )
    plain = await _plain(ctx, client, asked)
    count = len(plain.runs)
    try:
        under, made = await _under_options(ctx, client, asked)
    except NotApplicable:
        return plain, count
    runs, rows = zip(*made, strict=True) if made else ((), ())
    target = replace(
        plain,
        runs=[*plain.runs, *runs],
        under=[*({} for _ in plain.runs), *under],
        rows=[*plain.rows, *rows],
    )
    return target, count


async def _plain(ctx: Context, client: Client, asked: Changes) -> Target:
    lengths = [length for length in (PROMPT_TOKENS, BLOCKS * ctx.block_size + 1, 1) if _fits(ctx, length)]
    if not lengths:
        raise NotApplicable("the window has no room for the greedy runs")
    prompts = [ctx.prompt(length, salt=SALTS + number) for number, length in enumerate(lengths)]
    made = [await _run(ctx, client, prompt, asked) for prompt in prompts]
    runs, rows = zip(*made, strict=True)
    return Target(ctx, client, runs, Offer.of(ctx.config), rows=rows)


async def at_the_end_of_the_window(ctx: Context, client: Client) -> Target:
    """One run whose prompt leaves just the room for it; NotApplicable where that is too long."""
    length = ctx.context_length() - TOKENS
    if length > ctx.longest_prompt():
        raise NotApplicable("no prompt may fill the window")
    if not PROMPT_TOKENS <= length <= LONGEST - TOKENS:
        raise NotApplicable("the window is too long to be filled")
    ctx.tokens(TOKENS, length, least=TOKENS)
    run, _ = await _run(ctx, client, ctx.prompt(length, salt=SALTS - 1), {})
    return Target(ctx, client, [run], Offer.of(ctx.config))


async def _under_options(
    ctx: Context, client: Client, asked: Changes
) -> tuple[list[Changes], list[tuple[Greedy, Told]]]:
    """Runs of full blocks under options that change which tokens come, the same for all their cases.

    And one that repeats its prompt, where the model does that by itself: drafts foretell what comes of it.
    """
    length = BLOCKS * ctx.block_size + 1
    if not _fits(ctx, length):
        raise NotApplicable("the window has no room for full blocks")
    under, offer, prompt = list(_options(ctx)), Offer.of(ctx.config), ctx.prompt(length, salt=SALTS - 2)
    made = [await _run(ctx, client, prompt, {**changes, **asked}) for changes in under]
    if ctx.capabilities.seed:
        under.append(SEEDED)
        several: Changes = {"n": offer.most_choices} if offer.most_choices > 1 else {}
        made.append(await _run(ctx, client, prompt, {**SEEDED, **several, **asked}))
    with suppress(NotApplicable):
        found = await repetition(ctx)
        # Options that leave each token one other to follow leave none where min_tokens bars that one.
        if not found.under:
            under.append({})
            made.append(await _run(ctx, client, found.greedy.prompt, asked))
    return under, made


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


async def _run(ctx: Context, client: Client, prompt: list[int], changes: Changes) -> tuple[Greedy, Told]:
    """An answer that comes again to a prompt, and what was told of it."""
    count = ctx.tokens(TOKENS, len(prompt))
    request = ctx.request(token_ids=prompt, max_tokens=count, **changes)
    stream = await ctx.start(request, client=client).ok()
    message = "a run past every end of sequence has another length"
    choices = [stream.choices.get(index, Choice(index)) for index in range(num_choices(request.request))]
    for choice in choices:
        expect(len(choice.tokens) == count, message, expected=count, seen=len(choice.tokens))
    told = [[row for *_, row in rows_in(choice.outputs)] for choice in choices]
    first, *others = [choice.tokens for choice in choices]
    return Greedy(list(request.request.token_ids), first, tuple(others)), told


def _fits(ctx: Context, prompt_tokens: int) -> bool:
    return prompt_tokens <= ctx.longest_prompt(FEWEST)
