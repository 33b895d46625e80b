"""SAM: bias, penalties, allowed ids and bad words, judged by what would have been chosen.

With `top_k` of 1 the token with the highest logit is chosen, whatever the temperature. What bias and
penalties make of the logits is computed from the log-probabilities of the same answer: a logit is one of
those and a constant of its position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from itertools import cycle, islice, pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.options.distributions.draws import CHOICES, alternatives, drawn
from enginewire.conformance.checks.options.distributions.position import TIED, Position
from enginewire.conformance.checks.options.distributions.rows import rows_of
from enginewire.conformance.checks.options.filters import HOT, ROWS, TEMPERATURES
from enginewire.conformance.oracle.repetition import only, wished
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value, path_of
from enginewire.conformance.session.saturation import beyond_memory, short_of_memory
from enginewire.conformance.wire.violation import NotApplicable, expect
from enginewire.field_rules import FIELD_RULES

TOKENS: Final = 16
MANY: Final = 64
PROMPT: Final = 32
FEW: Final = 4
LONG: Final = 600
"""Tokens of a prompt, which an engine may compute in parts."""

SIZES: Final = (1, 3, 17)
"""Of allowed_token_ids."""

PENALTIES: Final[tuple[dict[str, float], ...]] = (
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -2.0, "frequency_penalty": 0.5},
)
BELOW_MINIMUM: Final = 1
"""The one of them whose answer is all below min_tokens."""

REPETITION: Final = ((1.5, 100.0, 90.0), (10.0, 100.0, 90.0), (0.5, 80.0, 100.0), (10.0, -90.0, -100.0))
"""A penalty, and the biases of two tokens of which it reaches the first: the other one is then better."""

LOGITS: Final = (-20.0, 100.0)
"""Between these the best logit of any model is; the biases decide, whatever it is."""
BELOW_ZERO: Final = (-100.0, 70.0)
"""Where the biases are to leave no logit above 0."""

Change = Callable[[int, Sequence[int]], float]
"""What is added to the logit of a token behind others."""


@check("SAM-13", needs=(*SHAPE, "INF-05"), costly=True)
async def only_allowed_ids_come(ctx: Context) -> None:
    """From one id on, in every choice, from the first token on; not by a bias either.

    Nor where all of them are stop ids below min_tokens. And one that is there twice is allowed as any other.
    """
    length = ctx.tokens(TOKENS)
    for size, temperature in zip(SIZES, TEMPERATURES, strict=True):
        allowed = sorted(set(ctx.prompt(size, salt=500)))
        count = ctx.choices(CHOICES)
        changes: dict[str, Value] = {"n": count} if count > 1 else {}
        others = [token for token in ctx.prompt(size + 1, salt=502) if token not in allowed]
        changes |= wished(ctx, *others[:1])
        changes |= {"stop_token_ids": allowed, "min_tokens": length} if size == SIZES[1] else {}
        stream = await ctx.generate(
            ctx.request(max_tokens=length, temperature=temperature, allowed_token_ids=allowed, **changes)
        )
        for index, choice in stream.choices.items():
            message = f"choice {index} has a token that is none of {size} allowed ones"
            expect(set(choice.tokens) <= set(allowed), message, expected=allowed, seen=choice.tokens)
    greedy = await ctx.greedy()
    best, other = greedy.tokens[0], next(token for token in greedy.prompt if token != greedy.tokens[0])
    request = ctx.request(token_ids=greedy.prompt, allowed_token_ids=[best, other, best])
    seen = (await ctx.generate(request)).tokens
    message = "the greedy token does not come where allowed_token_ids has it twice"
    expect(best in seen, message, expected=best, seen=seen)


@check("SAM-14", gate="logprobs", needs=(*ROWS, "SAM-06"), costly=True)
async def bad_words_do_not_come(ctx: Context) -> None:
    """Of one, two and five tokens, taken from what would come; and the next best token does.

    A bias brings none back. What a prompt ends with is not the beginning of one, and the last three of four
    are none.
    """
    greedy = await ctx.greedy(least=5)
    first, second, third, fourth, fifth = greedy.tokens[:5]
    other = next(token for token in greedy.prompt if token != first)
    over, nearly = [greedy.prompt[-1], first], [other, second, third, fourth]
    words = (
        [[first]],
        [over, [second, first], [first, second]],
        [nearly, [first, second, third, fourth, fifth]],
    )
    seen = []
    for some, temperature in zip(words, TEMPERATURES, strict=True):

        def forbidden(token: int, before: Sequence[int], some: list[list[int]] = some) -> float:
            ends = (word for word in some if word[-1] == token)
            behind = any(list(before[len(before) - len(word) + 1 :]) == word[:-1] for word in ends)
            return -math.inf if behind else 0.0

        sequences = [pb.TokenSequence(token_ids=word) for word in some]
        changes: dict[str, Value] = {"token_ids": greedy.prompt, "bad_words_token_ids": sequences}
        if some == [[first]]:
            changes |= wished(ctx, first)
        seen += [await _best_comes(ctx, forbidden, f"bad words {some}", temperature, changes)]
    await _no_choice_repeats_a_token(ctx)
    _could_be_seen(seen)


async def _no_choice_repeats_a_token(ctx: Context) -> None:
    """Of a few, where doing so is a bad word, and where choices differ."""
    few = list(dict.fromkeys(ctx.prompt(FEW, salt=504)))
    changes: dict[str, Value] = {"temperature": HOT, "top_k": FEW, **only(ctx, *few)}
    never = [token for token in ctx.prompt(2 * FEW, salt=505) if token not in few][:2]
    # Before and behind each one there is another that ends with the same token, and does not come.
    pairs = [[first, token] for token in few for first in (*never[:1], token, *never[1:])]
    if len(pairs) > FIELD_RULES[path_of("bad_words_token_ids")].most(ctx.limits):
        pairs = [[token, token] for token in few]
    changes["bad_words_token_ids"] = [pb.TokenSequence(token_ids=pair) for pair in pairs]
    count = ctx.choices(CHOICES)
    several: dict[str, Value] = {"n": count} if count > 1 else {}
    stream = await ctx.generate(ctx.request(max_tokens=ctx.tokens(TOKENS), **changes, **several))
    for index, choice in stream.choices.items():
        twice = [one for one, following in pairwise(choice.tokens) if one == following and one in few]
        message = f"choice {index} has a bad word of two tokens"
        expect(not twice, message, expected=f"none of {few} twice in a row", seen=choice.tokens)


@check("SAM-17", gate="logprobs", needs=(*ROWS, "SAM-06", "SAM-09"), costly=True)
async def every_bias_counts(ctx: Context) -> None:
    """A few, the deciding one last and no whole number, and some below 0."""
    prompt = ctx.prompt(salt=501)
    row = (await drawn(ctx, token_ids=prompt, max_tokens=1, n=None, temperature=1.0))[0][0]
    likely = sorted(row.known, key=lambda token: -row.known[token])[:FEW]
    if len(likely) < FEW:
        raise NotApplicable("rows of so few alternatives do not tell what a bias decides")
    others = [token for token in dict.fromkeys(ctx.prompt(17, salt=502)) if token not in likely]
    settings = (
        {likely[0]: 0.5, **_just_enough(row, likely)},
        {likely[0]: -5.0, likely[1]: -5.0},
        {**dict.fromkeys(others, 1.0), likely[1]: -4.0, likely[2]: 4.0},
    )
    seen = []
    for biases, temperature in zip(settings, TEMPERATURES, strict=True):
        entries = [pb.LogitBias(token_id=token, bias=bias) for token, bias in biases.items()]

        def biased(token: int, before: Sequence[int], biases: dict[int, float] = biases) -> float:
            return biases.get(token, 0.0)

        changes: dict[str, Value] = {"token_ids": prompt, "logit_bias": entries}
        seen += [await _best_comes(ctx, biased, f"biases {biases}", temperature, changes)]
    _could_be_seen(seen)


def _just_enough(row: Position, likely: Sequence[int]) -> dict[int, float]:
    """A bias that brings one of the others before the best with its 0.5, and no whole number below would."""
    behind = {token: row.known[likely[0]] + 0.5 - row.known[token] for token in likely[1:]}
    token = min(behind, key=lambda token: abs(behind[token] % 1 - 0.5))
    return {token: (behind[token] + math.ceil(behind[token])) / 2}


@check("SAM-18", variant="output", gate="logprobs", needs=(*ROWS, "SAM-06"), costly=True)
async def penalties_count_the_output(ctx: Context) -> None:
    """Each alone, and both in other directions; not what is in the prompt or in another choice.

    Below a minimum of tokens as well.
    """
    seen, count = [], ctx.tokens(MANY, PROMPT)
    for number, (penalties, temperature) in enumerate(zip(PENALTIES, TEMPERATURES, strict=True)):
        presence, frequency = (penalties.get(f"{name}_penalty", 0.0) for name in ("presence", "frequency"))

        def penalised(
            token: int, before: Sequence[int], presence: float = presence, frequency: float = frequency
        ) -> float:
            return -presence * (token in before) - frequency * before.count(token)

        prompt = ctx.prompt(PROMPT, salt=503 + number)
        changes: dict[str, Value] = {"token_ids": prompt, "max_tokens": count, **penalties}
        changes |= {"min_tokens": count} if number == BELOW_MINIMUM else {}
        kept = 2 if temperature > 1 else 1
        seen += [await _best_comes(ctx, penalised, str(penalties), temperature, changes, kept)]
    _could_be_seen(seen)


@check(
    "SAM-18",
    variant="preempted",
    gate="logprobs",
    phase=Phase.LOAD,
    alone=True,
    costly=True,
    needs=(*WHOLE, *ROWS, "INF-07", "SAM-06", "SAM-18/output"),
)
async def presence_counts_the_output_where_memory_is_short(ctx: Context) -> None:
    """Of requests of which one gives up its memory: what came before that still counts."""
    penalty = PENALTIES[0]["presence_penalty"]
    wanted = [
        requests.change(each, presence_penalty=penalty, logprobs=alternatives(ctx))
        for each in beyond_memory(ctx)
    ]
    async with short_of_memory(ctx, wanted) as streams:
        pass

    def penalised(token: int, before: Sequence[int]) -> float:
        return -penalty * (token in before)

    seen = []
    for number, stream in enumerate(streams):
        rows = rows_of((await stream.ok()).choice.outputs)
        positions = [Position.of(row, (), ctx.config.vocab_size) for row in rows]
        seen += [_are_best(positions, penalised, "where memory is short", f"request {number}")]
    _could_be_seen(seen)


@check("SAM-18", variant="repetition", gate="selected_logprobs", needs=(*ROWS, "SAM-17"), costly=True)
async def repetition_counts_the_prompt(ctx: Context) -> None:
    """Two tokens biased so much that one of them comes: one in the prompt, in the output, and in both.

    And two that alone are allowed, whose logits are below 0: there the penalty makes them smaller still.
    The prompt takes several steps, and its first token comes in it once.
    """
    if not (ctx.capabilities.logit_bias and ctx.capabilities.logprobs):
        raise NotApplicable("without logit_bias and logprobs nobody knows what the penalty decides")
    first, *rest = ctx.prompt(salt=510)
    prompt = [first, *islice(cycle(rest), min(LONG, ctx.longest_prompt(FEW)) - 1)]
    new = [token for token in dict.fromkeys(ctx.prompt(16, salt=511)) if token not in prompt][:2]
    decided = 0
    for (penalty, *biases), temperature in zip(REPETITION, (*TEMPERATURES, HOT), strict=True):
        is_alone = max(biases) < 0
        if is_alone and not ctx.capabilities.allowed_token_ids:
            continue
        for pair in ([first, new[0]], [rest[-1], new[0]], new):
            entries = [
                pb.LogitBias(token_id=token, bias=bias) for token, bias in zip(pair, biases, strict=True)
            ]
            changes: dict[str, Value] = {
                "logit_bias": entries,
                "logprob_token_ids": pair,
                "token_ids": prompt,
                "allowed_token_ids": pair if is_alone else [],
            }
            options = {"repetition_penalty": penalty, "temperature": temperature, "top_k": 1}
            for positions in await drawn(ctx, max_tokens=ctx.tokens(FEW, len(prompt)), **changes, **options):
                decided += _repetition_holds(positions, dict(zip(pair, biases, strict=True)), prompt, penalty)
    if not decided:
        raise NotApplicable("this model is too sure of its tokens for the biases to decide")


async def _best_comes(
    ctx: Context, change: Change, what: str, temperature: float, changes: dict[str, Value], kept: int = 1
) -> bool:
    """Each token is among the `kept` best after the change; True when it mattered somewhere."""
    mattered = False
    options: dict[str, Value] = {
        "max_tokens": ctx.tokens(TOKENS),
        "temperature": temperature,
        "top_k": kept,
        **changes,
    }
    barred = set(ctx.config.eos_token_ids) if "min_tokens" in changes else set()
    for index, positions in enumerate(await drawn(ctx, **options)):
        free = [_without(position, barred) for position in positions]
        mattered |= _are_best(free, change, what, f"choice {index}", kept)
    return mattered


def _without(position: Position, barred: Set[int]) -> Position:
    """The position without tokens that an engine may keep from being sampled; its own one stays."""
    left = {token: value for token, value in position.known.items() if token not in barred - {position.token}}
    return replace(position, known=left)


def _are_best(positions: Iterable[Position], change: Change, what: str, where: str, kept: int = 1) -> bool:
    """The same of one choice."""
    mattered = False
    before: list[int] = []
    for position in positions:
        values = {token: value + change(token, before) for token, value in position.known.items()}
        ahead = [token for token, value in values.items() if value > values[position.token] + TIED]
        message = f"{what}: a better token than {position.token} was left"
        place = f"position {len(before)} of {where}"
        expect(len(ahead) < kept, f"{message} at {place}", expected=ahead[:kept], seen=position.token)
        plain = max(position.known, key=position.known.__getitem__)
        mattered |= sum(value > values[plain] + TIED for value in values.values()) >= kept
        before.append(position.token)
    return mattered


def _could_be_seen(seen: Sequence[bool]) -> None:
    if not any(seen):
        raise NotApplicable("this model chooses the same tokens without these options")


def _repetition_holds(
    positions: Sequence[Position], biases: dict[int, float], prompt: Sequence[int], penalty: float
) -> int:
    """How many tokens the penalty decided; each has to be the better one, where that is certain."""
    met, decided = set(prompt), 0
    for position in positions:
        logits = BELOW_ZERO if max(biases.values()) < 0 else LOGITS
        best = {_better(position, biases, met, penalty, logit) for logit in logits}
        plain = _better(position, biases, set(), penalty, 0.0)
        # Behind a large penalty for both, another token may be better than either.
        if len(best) == 1 and (best != {plain} or position.token in biases):
            message = (
                f"a repetition_penalty of {penalty:g} does not reach each token of prompt and output once"
            )
            expect(position.token in best, message, expected=best, seen=position.token)
            decided += best != {plain}
        met.add(position.token)
    return decided


def _better(
    position: Position, biases: dict[int, float], met: set[int], penalty: float, best_logit: float
) -> int:
    """The biased token that comes, when the best logit of the position is this."""

    def logit(token: int) -> float:
        value = position.known[token] - position.best + best_logit + biases[token]
        if token not in met:
            return value
        return value / penalty if value > 0 else value * penalty

    return max(biases, key=logit)
