"""Grids of 16 values for groups of weights: the ones that lie nearest to them.

A group is fitted by least squares, from a few first guesses. What others have rounded to such a grid keeps
it: it is found by trying every number of steps that a group may span. Knows nothing about memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 15
"""The highest number."""
ZERO_PARTS = 16
"""Zeros are in parts of a number."""
MOST_ZERO = 255
GUESSES = (14, 15, 16)
"""How many steps the values of a group span at first; where there are not so many, both ends are cut."""
ALL_GUESSES = tuple(range(1, MOST + 1))
REFINEMENTS = 2
SMALLEST = 1e-30
NEAR = 0.05
"""How far values of a grid are from it, in numbers: zeros and the dtype of the weights are rounded too."""


@dataclass(frozen=True, slots=True)
class Grids:
    """Of each group: what a number is `worth`, and the one that stands for zero, in parts; both [..., 1]."""

    worth: Tensor
    zeros: Tensor

    def per(self) -> Tensor:
        """How many numbers a weight of 1 would be."""
        return self.worth.clamp(min=SMALLEST).reciprocal_()

    def numbers(self, groups: Tensor) -> Tensor:
        """The nearest, from 0 to `MOST`."""
        return (groups * self.per()).add_(self.zeros / ZERO_PARTS).clamp_(0, MOST).round_()

    def values(self, numbers: Tensor) -> Tensor:
        """What numbers stand for."""
        return (numbers - self.zeros / ZERO_PARTS).mul_(self.worth)

    def refined(self, groups: Tensor) -> Grids:
        """What fits best, by least squares, if every weight keeps its number."""
        numbers = self.numbers(groups)
        means = _means(numbers)
        apart = numbers - means
        spread = _means(apart.square())
        fitted = _means(apart.mul_(groups)) / spread
        return _centred(torch.where(spread > 0, fitted, self.worth), means, groups)

    def with_worth(self, worth: Tensor, groups: Tensor) -> Grids:
        """What fits best if a number is worth this, and every weight keeps its number."""
        return _centred(worth, _means(self.numbers(groups)), groups)


def choose_guesses(groups: Tensor) -> tuple[int, ...]:
    """What is enough for a matrix of which these are some groups [..., inputs]: more if it is of a grid."""
    grids = fit_grids(groups, ALL_GUESSES)
    is_far = _errors(groups, grids) >= NEAR**2 * grids.worth.square()
    return GUESSES if is_far.float().mean() > 0.5 else ALL_GUESSES


def fit_grids(groups: Tensor, guesses: Iterable[int]) -> Grids:
    """The nearest to each of groups [..., inputs] that a guess leads to."""
    best, *others = (_fitted(groups, steps) for steps in guesses)
    errors = _errors(groups, best)
    for grids in others:
        found = _errors(groups, grids)
        is_better = found < errors
        errors = torch.where(is_better, found, errors)
        best = Grids(
            torch.where(is_better, grids.worth, best.worth), torch.where(is_better, grids.zeros, best.zeros)
        )
    return best


def _fitted(groups: Tensor, steps: int) -> Grids:
    lowest = groups.amin(-1, keepdim=True).clamp_(max=0)
    worth = (groups.amax(-1, keepdim=True).clamp_(min=0) - lowest) / steps
    cut = max(steps - MOST, 0) / 2
    grids = Grids(worth, _whole_zeros(-lowest * Grids(worth, lowest).per() - cut))
    for _ in range(REFINEMENTS):
        grids = grids.refined(groups)
    return grids


def _errors(groups: Tensor, grids: Grids) -> Tensor:
    """Mean of squares, of each group."""
    return _means((grids.values(grids.numbers(groups)) - groups).square_())


def _centred(worth: Tensor, means: Tensor, groups: Tensor) -> Grids:
    """The mean of each group stays what it is, if its numbers have these."""
    return Grids(worth, _whole_zeros(means - _means(groups) * Grids(worth, means).per()))


def _whole_zeros(zeros: Tensor) -> Tensor:
    return (zeros * ZERO_PARTS).clamp_(0, MOST_ZERO).round_()


def _means(values: Tensor) -> Tensor:
    """Of each group, added in the order of halves, as the kernel adds them."""
    size = values.shape[-1]
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values / size
