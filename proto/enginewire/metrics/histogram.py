"""Counts of values by bucket, cheap enough for every output.

Knows nothing about what is counted, or about who shows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# The bounds that vLLM's dashboards expect, with finer ones below where a fast engine lives.
FIRST_TOKEN_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0),
    *(480.0, 960.0, 1920.0, 7680.0),
)
TOKENS: Final = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class Histogram:
    """`counts[i]` values were at most `bounds[i]` and above the bound before; the last count has the rest."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Take a value, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[int]:
        """How many values were at most each bound, then how many there were."""
        total = 0
        return [total := total + count for count in self.counts]

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and cumulative count, as Prometheus writes them."""
        bounds = [str(bound) for bound in self.bounds] + ["+Inf"]
        return list(zip(bounds, map(float, self.cumulative()), strict=True))
