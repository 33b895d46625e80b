"""The log-probabilities that a caller asked for: which, those of one token, those of a prompt.

Knows nothing about torch or how they are computed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogprobsWanted:
    """Per output token: `top_n` alternatives, and the log-probabilities of `token_ids`."""

    top_n: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """One token: its log-probability and 1-based rank, the best alternatives, the selected ids.

    Rank 0: not computed.
    """

    token: float
    rank: int
    top_ids: list[int]
    top: list[float]
    selected: list[float]


@dataclass(slots=True)
class PromptScores:
    """The log-probabilities of a prompt in columns, as far as they are computed.

    Row i of `num_rows` describes prompt token i + 1; `top_n` alternatives per row, row-major. Not `is_finite`
    when the model computed something that is no number.
    """

    num_rows: int
    top_n: int
    is_finite: bool = True
    tokens: array[float] = field(default_factory=lambda: array("f"))
    ranks: array[int] = field(default_factory=lambda: array("I"))
    top_ids: array[int] = field(default_factory=lambda: array("I"))
    top: array[float] = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_complete(self) -> bool:
        """True when every row is there."""
        return len(self) == self.num_rows


@dataclass(frozen=True, slots=True)
class Continuation:
    """A token that may come next: `score` is its log-probability under the request's rules."""

    token_id: int
    score: float
    logprobs: RowLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Beam:
    """What a choice of a beam search has beside its tokens: their scores added up, and a row for each.

    `continuations` are known once its tokens are computed, the most probable first.
    """

    score: float = 0.0
    logprobs: tuple[RowLogprobs, ...] = ()
    continuations: tuple[Continuation, ...] = ()
