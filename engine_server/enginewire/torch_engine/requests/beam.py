"""What a choice of a beam search has beside its tokens.

Knows nothing about torch or which beams survive.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginewire.torch_engine.requests.scores import RowLogprobs


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
