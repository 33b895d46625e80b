"""Log-probabilities of chosen tokens and their alternatives, from the raw logits.

Raw means before temperature, penalties and filters. Knows nothing about how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from engine_server.torch_engine.sequence import LogprobsWanted

IMPOSSIBLE = -1e30
"""Stands for the logarithm of zero: the wire carries finite numbers only."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """One token: its log-probability and 1-based rank, the best alternatives, the selected ids."""

    token: float
    rank: int
    top_ids: list[int]
    top: list[float]
    selected: list[float]


def read_logprobs(logits: Tensor, chosen: Tensor, wanted: Seq[LogprobsWanted]) -> list[RowLogprobs]:
    """One entry per row of `logits` [rows, vocab]; `chosen` is [rows]."""
    scores = logits.log_softmax(dim=-1).clamp(min=IMPOSSIBLE)
    tokens = scores.gather(-1, chosen[:, None])
    ranks = ((scores > tokens).sum(-1) + 1).tolist()
    widest = max(want.top_n for want in wanted)
    top, top_ids = (part.tolist() for part in scores.topk(min(widest, scores.shape[-1])))
    values = tokens[:, 0].tolist()
    return [
        RowLogprobs(
            token=values[row],
            rank=ranks[row],
            top_ids=top_ids[row][: want.top_n],
            top=top[row][: want.top_n],
            selected=scores[row, list(want.token_ids)].tolist() if want.token_ids else [],
        )
        for row, want in enumerate(wanted)
    ]
