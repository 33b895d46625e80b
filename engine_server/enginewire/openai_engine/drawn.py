"""A token as a server has drawn it, and its log-probabilities. Knows nothing about servers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb

IMPOSSIBLE: Final = -1e30
"""What stands for the log-probability of zero."""


@dataclass(frozen=True, slots=True)
class Row:
    """The log-probability of a token, and its alternatives with theirs, in any order."""

    logprob: float
    alternatives: tuple[tuple[int, float], ...]

    def message(self, top_n: int) -> pb.Logprobs:
        """One row with the `top_n` most probable alternatives, or as many as there are."""
        ordered = sorted(self.alternatives, key=lambda pair: -pair[1])[:top_n]
        return pb.Logprobs(
            token_logprobs=[finite(self.logprob)],
            top_n=len(ordered),
            top_token_ids=[token_id for token_id, _ in ordered],
            top_logprobs=[finite(value) for _, value in ordered],
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token; `row` is there when the request asks for log-probabilities."""

    token_id: int
    row: Row | None = None


def ids_of(drawn: Iterable[Drawn]) -> list[int]:
    """The tokens alone."""
    return [each.token_id for each in drawn]


def finite(value: float) -> float:
    """Servers have numbers of their own for the logarithm of zero."""
    return value if math.isfinite(value) and value > LEAST else IMPOSSIBLE


LEAST: Final = -9999.0
"""What vLLM writes for anything below; the probability is then zero in any arithmetic."""
