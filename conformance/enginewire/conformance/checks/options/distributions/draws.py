"""Sampled answers with as much of their distributions as the target tells, position by position.

Sends requests; judges nothing.
"""

from __future__ import annotations

from typing import Final

from enginewire.conformance.checks.options.distributions.position import Position
from enginewire.conformance.checks.options.distributions.rows import rows_of
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.sizes import most_alternatives

CHOICES: Final = 3
USUAL_MOST: Final = 20
USUAL_IDS: Final = 256


def alternatives(ctx: Context) -> int:
    """How many alternatives a row can have here."""
    return min(most_alternatives(ctx.config), USUAL_MOST, ctx.config.vocab_size)


def tellable(ctx: Context) -> list[int]:
    """The whole vocabulary, where each of its ids can be asked for by itself; empty elsewhere."""
    named = ctx.limits.HasField("max_stop_token_ids")
    most = ctx.limits.max_stop_token_ids if named else USUAL_IDS
    is_offered = ctx.capabilities.selected_logprobs and ctx.config.vocab_size <= min(most, USUAL_IDS)
    return list(range(ctx.config.vocab_size)) if is_offered else []


async def drawn(ctx: Context, **changes: Value) -> list[list[Position]]:
    """The positions of each choice of one request; some choices, unless `n` is among the changes.

    `logprob_token_ids` replaces the ids that are asked for by themselves. Every other request has a seed, and
    two of four travel over a multiplexed stream.
    """
    selected = changes.pop("logprob_token_ids", tellable(ctx))
    asked: dict[str, Value] = {"logprobs": alternatives(ctx), "logprob_token_ids": selected}
    count = ctx.choices(CHOICES)
    asked |= {"n": count} if count > 1 else {}
    request = ctx.request(**{**asked, **changes})
    turn = ctx.session.next_number() // 2  # its id took one too
    if turn % 2 and ctx.capabilities.seed:
        request.request.sampling_options.seed = turn
    stream = await ctx.start(request, is_multiplexed=turn // 2 % 2 == 1).ok()
    vocabulary = ctx.config.vocab_size
    ids = list(selected) if isinstance(selected, list) else []
    return [
        [Position.of(row, ids, vocabulary) for row in rows_of(choice.outputs)]
        for _, choice in sorted(stream.choices.items())
    ]
