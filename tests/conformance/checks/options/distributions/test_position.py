"""What is concluded from a few alternatives holds for the whole distribution behind them."""

from __future__ import annotations

import math
import random

import pytest

from enginewire.conformance.checks.options.distributions.position import TIED, Position
from enginewire.conformance.checks.options.distributions.rows import Row

TEMPERATURES = (0.3, 0.7, 1.0, 1.5, 20.0)


def distribution(seed: int, size: int = 200, width: float = 8.0) -> list[float]:
    """Log-probabilities, most probable first."""
    drawn = random.Random(seed)
    logits = sorted((width * drawn.random() for _ in range(size)), reverse=True)
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def position(values: list[float], token: int, told: int, selected: tuple[int, ...] = ()) -> Position:
    """That of a row with the best `told` alternatives; ids are ranks."""
    row = Row(token, values[token], list(range(told)), values[:told], [values[each] for each in selected])
    return Position.of(row, selected, len(values))


def share(values: list[float], first: int, temperature: float) -> float:
    """The probability of the tokens before `first`."""
    weights = [math.exp(value / temperature) for value in values]
    return sum(weights[:first]) / sum(weights)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_share_is_never_overrated(temperature: float) -> None:
    for seed in range(20):
        values = distribution(seed)
        for token in (0, 3, 60):
            seen = position(values, token, told=8)
            assert seen.share_ahead(values[token], temperature) <= share(values, token, temperature) + 1e-9


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_chance_is_never_overrated_and_exact_where_all_is_known(temperature: float) -> None:
    for seed in range(20):
        values = distribution(seed)
        for kept in (2, 8):
            true = 1 - share(values, kept, temperature)

            def rule(seen: Position, value: float, kept: int = kept) -> bool:
                return seen.ahead(value) >= kept

            assert position(values, 0, told=8).chance(rule, temperature) <= true + 1e-9
            whole = position(values, 0, told=8, selected=tuple(range(len(values))))
            assert whole.chance(rule, temperature) == pytest.approx(true, abs=0.01)


def test_what_is_missing_from_a_row_weighs_between_its_extremes() -> None:
    values = distribution(1)
    seen = position(values, 0, told=8)
    assert seen.unknown == 192
    assert seen.share_ahead(values[4], 1.0) == pytest.approx(share(values, 4, 1.0), abs=1e-4)


def test_ties_with_the_last_of_the_best_leave_open_which_they_are() -> None:
    tied = Position(0, -1.0, {0: -1.0, 1: -2.0, 2: -2.0 - TIED / 2, 3: -3.0}, -3.0, 5)
    assert tied.among(2) is None
    assert tied.among(4) is None  # one that is not known may tie
    few = tied.among(3)
    assert few is not None
    assert (list(few.known), few.unknown) == ([0, 1, 2], 0)


def test_equals_are_not_ahead() -> None:
    seen = Position(1, -2.0, {0: -2.0 + TIED / 2, 1: -2.0, 2: -1.0}, -2.0, 0)
    assert seen.ahead(-2.0) == 1


def test_moments_are_those_of_a_draw() -> None:
    seen = Position(0, -1.0, {0: math.log(0.5), 1: math.log(0.25), 2: math.log(0.25)}, -2.0, 0)
    mean, variance = seen.moments(1.0)
    assert mean == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.25))
    assert variance == pytest.approx(0.25 * math.log(2) ** 2)


def test_a_token_beyond_the_row_is_known_and_not_told() -> None:
    values = distribution(2)
    assert not position(values, 60, told=8).is_told
    assert position(values, 60, told=8).known[60] == values[60]
    assert position(values, 3, told=8).is_told


def test_impossible_alternatives_do_no_harm() -> None:
    row = Row(0, 0.0, [0, 1, 2], [0.0, -1e30, -1e30], [])
    seen = Position.of(row, (), 100)
    for temperature in TEMPERATURES:
        assert 0 <= seen.share_ahead(-1e30, temperature) <= 1
        assert seen.chance(lambda each, value: each.ahead(value) >= 1, temperature) >= 0
