"""SAM: `top_k`, `top_p`, `min_p` and `temperature`, judged by the log-probabilities of the same answer.

Each token is held against the distribution of its own position, at several settings and temperatures and
in several choices. The same distributions say how probably an engine without the filter would have drawn
only what the filter allows; until that is improbable more is drawn.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

from enginewire.conformance.checks.options.distributions.draws import alternatives, drawn, tellable
from enginewire.conformance.checks.options.distributions.position import SHARE, TIED, Position, Rule
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.company import MINIMUM
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import PROMPT_TOKENS, Value
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect

ROWS: Final = (*SHAPE, "LOG-01", "LOG-02", "LOG-03", "LOG-04", "LOG-11")
"""What reads rows as the model's own distribution relies on."""

TEMPERATURES: Final = (0.7, 1.0, 1.5)
HOT: Final = 100.0
ROUNDS: Final = (8, 24, 64)
"""Tokens of each choice: more are drawn while too few would have shown a filter that is ignored."""
MISSED: Final = 1e-4
"""How probably a filter that is ignored may stay unseen."""
SLOTS: Final = 4
LONG: Final = 600
"""Tokens of a prompt, which an engine may compute in parts: every other setting has such a one."""

MILD: Final = {"top_p": 0.9, "min_p": 0.02}
"""Filters that leave most of the probability to another one beside them."""

MANY: Final = 48
MOST_MANY: Final = 4
COLD_AND_HOT: Final = (0.5, 2.0)
DEVIATIONS: Final = 6.0
"""Standard deviations that a correct server stays within, but for two runs in a billion."""

TOLD: Final = 1.5
"""Bounds that a server without temperature has to be away from what is right."""

HOPELESS: Final = 0.5
"""Of that: what all turns together would not reach is not waited for."""

Options = dict[str, float]
Setting = tuple[Options, float]
"""Options of a request, and the temperature they are tried at."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What some options must not let pass, and how probably a server without them would."""

    rule: Rule
    chance: Callable[[Position], float]


@check(
    "SAM-07",
    variant="settings",
    gate="logprobs",
    costly=True,
    in_company=True,
    needs=(*ROWS, "SAM-06", "SAM-07"),
)
async def top_k_holds_at_other_settings(ctx: Context) -> None:
    """Few and many; hot, so that much is drawn from outside when it is ignored."""
    known = len(tellable(ctx)) // 3 or alternatives(ctx)
    settings = sorted({min(count, known) for count in (2, 8, known)} - {0})
    await _hold(ctx, "top_k", settings, (*TEMPERATURES, HOT), beside=("min_p",))


@check("SAM-11", gate="logprobs", costly=True, in_company=True, needs=(*ROWS, "SAM-06"))
async def the_nucleus_holds(ctx: Context) -> None:
    """Small, half and most of the probability, before temperature or after it."""
    await _hold(ctx, "top_p", (0.1, 0.5, 0.9), TEMPERATURES, beside=("min_p",))


@check("SAM-12", gate="logprobs", costly=True, in_company=True, needs=(*ROWS, "SAM-07"))
async def min_p_holds(ctx: Context) -> None:
    """Little and much of the best token's probability, before temperature or after it."""
    await _hold(ctx, "min_p", (0.02, 0.2, 0.8), TEMPERATURES, beside=("top_p",))


@check(
    "SAM-15",
    gate="logprobs",
    costly=True,
    in_company=True,
    needs=(*ROWS, "SAM-07/settings", "SAM-11", "SAM-12", "SAM-16"),
)
async def filters_come_in_their_order(ctx: Context) -> None:
    """Of the few best tokens, all of which are known, the nucleus at their temperature."""
    few = alternatives(ctx) - 1
    if few < 2:
        raise NotApplicable("rows of so few alternatives cannot tell one order from another")
    many = len(tellable(ctx)) // 2 or few
    grid: list[Setting] = [({"top_k": few, "top_p": 0.5}, 0.7), ({"top_k": many, "top_p": 0.8}, 0.7)]
    # Whoever cuts the nucleus out of all tokens keeps more of so few, where much is in the tail.
    grid += [({"top_k": least, "top_p": 0.6}, HOT) for least in (2, 3) if least <= few]
    if ctx.capabilities.min_p:
        grid += [({"top_k": many, "min_p": share}, 0.7) for share in (0.1, 0.8)]
    await _all_hold(ctx, grid, _in_order)


@check("SAM-16", gate="logprobs", costly=True, in_company=True, needs=(*ROWS, "SAM-07"))
async def draws_follow_the_temperature(ctx: Context) -> None:
    """How probable the tokens of unfiltered answers are on average, within what is known of each row."""
    seen = await asyncio.gather(*(_follows(ctx, temperature) for temperature in COLD_AND_HOT))
    if not any(seen):
        raise NotApplicable(_too_few(ctx, "one temperature looks like another"))


async def _hold(
    ctx: Context,
    name: str,
    values: Sequence[float],
    temperatures: Sequence[float],
    *,
    beside: Sequence[str],
) -> None:
    """Each value of one option at each temperature, and one of them beside each other filter."""
    grid: list[Setting] = [({name: value}, at) for value, at in product(values, temperatures)]
    offered = (other for other in beside if other != "min_p" or ctx.capabilities.min_p)
    grid += [({name: values[len(values) // 2], other: MILD[other]}, 1.0) for other in offered]

    def filtered(options: Options, temperature: float) -> Filter:
        forbids, *others = (RULES[each](options[each], temperature) for each in options)

        def chance(position: Position) -> float:
            # What the other filter takes away nobody draws.
            taken = sum(position.chance(other, temperature) for other in others)
            return position.chance(forbids, temperature) - taken

        return Filter(forbids, chance)

    await _all_hold(ctx, grid, filtered)


async def _all_hold(
    ctx: Context, grid: Sequence[Setting], filtered: Callable[[Options, float], Filter]
) -> None:
    """A Violation for a token outside; NotApplicable when nowhere anything could have been seen."""
    slots, deadline = asyncio.Semaphore(SLOTS), time.monotonic() + ctx.bounds.effort

    async def missed(number: int, setting: Setting) -> float:
        async with slots:
            # What a slow target leaves no time for is not judged.
            if time.monotonic() > deadline:
                ctx.leave_out("fewer settings")
                return 1.0
            return await _missed(ctx, number, setting, filtered(*setting))

    found = await asyncio.gather(*(missed(number, setting) for number, setting in enumerate(grid)))
    if min(found) > MISSED:
        raise NotApplicable(_too_few(ctx, "hardly anything would be filtered out"))


async def _missed(ctx: Context, number: int, setting: Setting, filtered: Filter) -> float:
    """Draw and judge; how probably a server without the filter would have passed."""
    options, temperature = setting
    missed, rounds = 1.0, [ctx.tokens(count) for count in ROUNDS]
    for turn, count in enumerate(rounds):
        length = min(LONG, ctx.longest_prompt(count)) if number % 2 and not turn else PROMPT_TOKENS
        prompt = ctx.prompt(length, salt=300 + 3 * number + turn)
        changes: dict[str, Value] = {"token_ids": prompt, "max_tokens": count, "temperature": temperature}
        for index, positions in enumerate(await drawn(ctx, **changes, **options)):
            for place, position in _free(ctx, positions):
                _allowed(position, filtered.rule, setting, f"position {place} of choice {index}")
                missed *= 1 - min(max(filtered.chance(position), 0.0), 1.0)
        hopeless = missed ** (sum(rounds) / sum(rounds[: turn + 1])) > MISSED
        if missed < MISSED or hopeless:
            break
    return missed


def _free(ctx: Context, positions: Sequence[Position]) -> list[tuple[int, Position]]:
    """Each with its place, without those where a minimum may have kept stop ids from being sampled."""
    minimum = MINIMUM if "min_tokens" in ctx.company.members else 0
    return list(enumerate(positions))[minimum:]


def _too_few(ctx: Context, what: str) -> str:
    """Why the tokens that were drawn tell nothing."""
    if ctx.left_out:
        return f"the target is too slow for as many tokens as it takes: {', '.join(ctx.left_out)}"
    return f"the model is too sure of its tokens: {what}"


def _allowed(position: Position, rule: Rule, setting: Setting, place: str) -> None:
    if not rule(position, position.value):
        return
    options, temperature = setting
    ahead, share = position.ahead(position.value), position.share_ahead(position.value, 1.0)
    raise Violation(
        f"{options} at temperature {temperature:g} let token {position.token} pass at {place}",
        expected="a token that the filter leaves",
        seen=f"log-probability {position.value:.4f}, the best one's {position.best:.4f}; at least {ahead} "
        f"tokens with {share:.4f} of the model's own probability are before it",
    )


def _top_k(count: float, temperature: float) -> Rule:
    return partial(_is_beyond, count=count)


def _top_p(share: float, temperature: float) -> Rule:
    """Before temperature or after it."""
    before, after = (partial(_is_outside, share=share, temperature=at) for at in (1.0, temperature))
    return lambda position, value: before(position, value) and after(position, value)


def _min_p(share: float, temperature: float) -> Rule:
    """Before temperature or after it."""
    return partial(_is_below, share=share, temperature=max(temperature, 1.0))


RULES: Final = {"top_k": _top_k, "top_p": _top_p, "min_p": _min_p}
"""What each filter must not let pass, at a value and a temperature."""


def _is_beyond(position: Position, value: float, *, count: float) -> bool:
    return position.ahead(value) >= count


def _is_outside(position: Position, value: float, *, share: float, temperature: float) -> bool:
    return position.share_ahead(value, temperature) >= share + SHARE


def _is_below(position: Position, value: float, *, share: float, temperature: float) -> bool:
    return value < position.best + temperature * math.log(share) - TIED


def _in_order(options: Options, temperature: float) -> Filter:
    """Of a nucleus, or of a least share, among the `top_k` best tokens after temperature."""
    name = "top_p" if "top_p" in options else "min_p"
    condition = _is_outside if name == "top_p" else _is_below
    after = partial(condition, share=options[name], temperature=temperature)
    before = partial(condition, share=options[name], temperature=1.0)

    def rule(position: Position, value: float) -> bool:
        few = position.among(int(options["top_k"]))
        return few is not None and after(few, value)

    def chance(position: Position) -> float:
        few = position.among(int(options["top_k"]))
        if few is None:
            return 0.0
        # Of a server that filters before temperature, or without regard to top_k.
        others = (before, lambda _, value: after(position, value))
        return few.chance(after, temperature) - min(few.chance(other, temperature) for other in others)

    return Filter(rule, chance)


async def _follows(ctx: Context, temperature: float) -> bool:
    """False when even a server that ignores the temperature would have been believed."""
    drift = variance = expected = 0.0
    started, count = time.monotonic(), ctx.tokens(MANY)
    for turn in range(MOST_MANY):
        changes: dict[str, Value] = {"token_ids": ctx.prompt(salt=400 + turn), "max_tokens": count}
        answer = await drawn(ctx, **changes, temperature=temperature)
        told = [each for positions in answer for _, each in _free(ctx, positions) if each.is_told]
        for position in told:
            mean, square = position.moments(temperature)
            drift, variance = drift + position.value - mean, variance + square
            expected += position.moments(1.0)[0] - mean
        bound = DEVIATIONS * math.sqrt(variance)
        message = f"tokens are not drawn as temperature {temperature:g} says"
        seen = f"{drift:+.1f}, and {bound / DEVIATIONS:.1f} is the standard deviation"
        mean_of_all = "log-probabilities that add up to what it gives on average, 0.0 more or less"
        expect(abs(drift) <= bound, message, expected=mean_of_all, seen=seen)
        if abs(expected) > TOLD * bound:
            return True
        # What there is to see grows with the tokens, what chance may hide with their root.
        taken = (time.monotonic() - started) / ctx.bounds.effort
        more = min(MOST_MANY / (turn + 1), 1 / taken)
        if more < 1 or (turn and math.sqrt(more) * abs(expected) < HOPELESS * TOLD * bound):
            break
    return False
