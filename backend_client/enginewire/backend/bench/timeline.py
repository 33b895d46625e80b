"""When the pieces of one answer arrived.

Sans-IO. Times are seconds of whatever clock the caller has. Knows nothing about statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens that arrived together; None: some, but nobody said how many."""

    num_tokens: int | None


@dataclass(frozen=True, slots=True)
class Used:
    """What the other side counted."""

    num_input_tokens: int
    num_output_tokens: int


Piece = Delivery | Used


class Failed(Exception):
    """A request got no whole answer."""


@dataclass(slots=True)
class Timeline:
    """One request. `stamps` are the times of its deliveries; `failure` is "" for a whole answer.

    Latencies in seconds. They are only for requests that did not fail.
    """

    begin: float
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    stamps: list[float] = field(default_factory=list)
    failure: str = ""

    def add(self, now: float, piece: Piece) -> None:
        """Take what arrived."""
        if isinstance(piece, Used):
            self.num_input_tokens = piece.num_input_tokens
            self.num_output_tokens = piece.num_output_tokens
        elif piece.num_tokens is None:
            self.stamps.append(now)
        elif piece.num_tokens:
            self.stamps.append(now)
            self.num_output_tokens += piece.num_tokens

    def finish(self) -> None:
        """Nothing follows."""
        if not self.stamps and not self.failure:
            self.failure = "an answer without a token"

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.stamps[0] - self.begin

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.num_output_tokens < 2:
            return None
        return (self.stamps[-1] - self.stamps[0]) / (self.num_output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Times between deliveries, of which each has one token or more."""
        return [after - before for before, after in pairwise(self.stamps)]

    @property
    def e2el(self) -> float:
        """End-to-end latency: time to the last token."""
        return self.stamps[-1] - self.begin
