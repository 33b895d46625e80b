"""What a row of log-probabilities says for certain about the draw of its token.

A row has some alternatives, not the vocabulary. Of the rest it is known how probable it is together and
that none of it is more probable than the last alternative: enough to bound every share of probability at
every temperature. Knows nothing about requests; judges nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire.conformance.checks.options.distributions.rows import Row

TIED: Final = 1e-3
"""Log-probabilities no further apart are taken for equal: sums of logits, biases and penalties in single
precision differ by less."""

SHARE: Final = 1e-3
"""By how much a sum over a whole vocabulary in single precision may be wrong."""

_LEFT: Final = 1e-5
"""And by how much what a few dozen probabilities leave of 1."""

_LEAST: Final = -100.0
"""Nothing this improbable is ever drawn; below it exponents would overflow."""

Rule = Callable[["Position", float], bool]
"""Whether a token of that log-probability must not be drawn at that position. Once true, true below."""


@dataclass(frozen=True, slots=True)
class Position:
    """One position of one choice: its token, and the log-probabilities that are known there.

    `unknown`: how many tokens of the vocabulary are not among the known ones, none of them above `least`.
    `is_told`: the token is one that the row would have told whatever was drawn.
    """

    token: int
    value: float
    known: dict[int, float]
    least: float
    unknown: int
    is_told: bool = True

    @classmethod
    def of(cls, row: Row, selected: Sequence[int], vocab_size: int) -> Position:
        """The position of a row, whose request asked for the `selected` ids."""
        known = dict(zip(row.ids, row.values, strict=True))
        known.update(zip(selected, row.selected, strict=False))
        is_told = row.token in known
        known.setdefault(row.token, row.value)
        least = max(row.values[-1], _LEAST) if row.values else 0.0
        return cls(row.token, row.value, known, least, vocab_size - len(known), is_told)

    @property
    def best(self) -> float:
        """The log-probability of the most probable token."""
        return max(self.known.values())

    def ahead(self, value: float) -> int:
        """How many tokens, at least, are more probable than a token of this log-probability."""
        return sum(other > value + TIED for other in self.known.values())

    def share_ahead(self, value: float, temperature: float) -> float:
        """The part of the probability, at least, that more probable tokens have at this temperature."""
        total = ahead = 0.0
        for other in self.known.values():
            weight = math.exp(other / temperature)
            total += weight
            ahead += weight if other > value + TIED else 0.0
        return ahead / (total + self._rest(temperature)[1])

    def chance(self, rule: Rule, temperature: float) -> float:
        """How probable it is, at least, that a draw without any filter breaks the rule."""
        values = sorted(self.known.values(), reverse=True)
        first = bisect_left(values, True, key=lambda value: rule(self, value))
        weights = [math.exp(value / temperature) for value in values]
        fewest, most = self._rest(temperature)
        if self.unknown and rule(self, self.least):
            return 1 - sum(weights[:first]) / (sum(weights) + fewest)
        return sum(weights[first:]) / (sum(weights) + most)

    def among(self, count: int) -> Position | None:
        """The same position with its `count` best tokens alone; None where ties leave open which they are."""
        values = sorted(self.known.values(), reverse=True)
        if len(values) <= count:
            return self if len(values) == count and not self.unknown else None
        if values[count - 1] - max(values[count], self.least if self.unknown else -math.inf) <= TIED:
            return None
        best = {token: value for token, value in self.known.items() if value >= values[count - 1]}
        return Position(self.token, self.value, best, values[count - 1], 0)

    def moments(self, temperature: float) -> tuple[float, float]:
        """Mean and variance of the log-probability of a token drawn from the known ones."""
        best, total, mean, square = self.best, 0.0, 0.0, 0.0
        for value in self.known.values():
            weight = math.exp((value - best) / temperature)
            total, mean, square = total + weight, mean + weight * value, square + weight * value * value
        mean /= total
        return mean, max(square / total - mean * mean, 0.0)

    def _rest(self, temperature: float) -> tuple[float, float]:
        """The least and the most that all unknown tokens together weigh at this temperature."""
        if not self.unknown:
            return 0.0, 0.0
        power, mass = 1 / temperature, 1 - sum(map(math.exp, self.known.values()))
        bounds = []
        for rest in (max(mass - _LEFT, 0.0), max(mass, 0.0) + _LEFT):
            spread = self.unknown * (rest / self.unknown) ** power
            bounds.append((spread, rest * math.exp(self.least * (power - 1))))
        return min(bounds[0]), max(bounds[1])
