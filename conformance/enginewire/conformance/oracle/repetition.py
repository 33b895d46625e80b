"""An answer that goes on with what its prompt repeats: a draft foretells several of its tokens in a step.

Where the model does not go on by itself, options leave it nothing else. Sends requests; judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Changes
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import Value, path_of
from enginewire.conformance.wire.violation import NotApplicable
from enginewire.field_rules import FIELD_RULES

PERIOD: Final = 10
TIMES: Final = 4
TOKENS: Final = 24
SALT: Final = 7500

LOOKED_UP: Final = 5
"""The last tokens that a draft goes by, as a rule: it has what followed them when they stood there before."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """`under`: the options beside which the answer comes."""

    greedy: Greedy
    under: Changes

    @property
    def places(self) -> list[int]:
        """Behind the first token, those that have not come yet and that all tokens before them foretell."""
        prompt, tokens = self.greedy.prompt, self.greedy.tokens
        new = (place for place in range(1, len(tokens)) if tokens[place] not in tokens[:place])
        return [place for place in new if foretold([*prompt, *tokens[:place]]) == tokens[place]]


def foretold(tokens: Sequence[int]) -> int | None:
    """What followed the last tokens when they stood there before; None when they never did."""
    end = tokens[-LOOKED_UP:]
    starts = range(len(tokens) - LOOKED_UP - 1, -1, -1)
    found = (start + LOOKED_UP for start in starts if tokens[start : start + LOOKED_UP] == end)
    return next((tokens[place] for place in found), None)


async def repetition(ctx: Context) -> Repetition:
    """Made once and shared; NotApplicable where no answer repeats its prompt."""
    return await ctx.once("repetition", lambda: _repetition(ctx))


def counts(ctx: Context) -> range:
    """Of the choices to ask for: one, and two where a request may have them. Each has drafts of its own."""
    return range(1, ctx.choices(2) + 1)


def only(ctx: Context, *tokens: int) -> Changes:
    """What lets no others come; empty where nothing does."""
    if ctx.capabilities.allowed_token_ids:
        return {"allowed_token_ids": sorted(tokens)}
    return wished(ctx, *tokens)


def wished(ctx: Context, *tokens: int) -> dict[str, Value]:
    """The largest bias for each; empty where there are no biases."""
    entries = [pb.LogitBias(token_id=token, bias=100.0) for token in tokens]
    return {"logit_bias": entries} if entries and ctx.capabilities.logit_bias else {}


async def _repetition(ctx: Context) -> Repetition:
    """The first one of which drafts were right, where the engine says so; else the first one.

    A request that fails is none: what is wrong with it others say.
    """
    found: list[Repetition] = []
    for prompt, under in _ways(ctx):
        count = ctx.tokens(TOKENS, len(prompt), least=PERIOD)
        request = ctx.request(token_ids=prompt, max_tokens=count, **under)
        # Not recorded for any check: the first one to ask must not be the only one to show it.
        stream = await ctx.start(request, client=ctx.session.client()).end()
        one = Repetition(Greedy(prompt, stream.tokens), under)
        if stream.exchange.is_ok and one.places:
            found.append(one)
            if stream.usage.completion_tokens_details.accepted_prediction_tokens:
                return one
    if not found:
        raise NotApplicable("no answer of this model goes on with what its prompt repeats")
    return found[0]


def _ways(ctx: Context) -> Iterator[tuple[list[int], Changes]]:
    """A prompt without options, and with those that leave each token only one to follow it."""
    some, can = ctx.prompt(PERIOD, salt=SALT), ctx.capabilities
    yield some * TIMES, {}
    # Round and round: of all pairs of two the others are bad words.
    following = dict(zip(some, [*some[1:], some[0]], strict=True))
    pairs = [[one, other] for one in following for other in following if following[one] != other]
    is_offered = can.bad_words and len(pairs) <= FIELD_RULES[path_of("bad_words_token_ids")].most(ctx.limits)
    if is_offered and len(following) == PERIOD and (under := only(ctx, *some)):
        words = [pb.TokenSequence(token_ids=pair) for pair in pairs]
        yield some * TIMES, {**under, "bad_words_token_ids": words}
