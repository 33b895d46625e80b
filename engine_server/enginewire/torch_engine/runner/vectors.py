"""Sums of states, and the vectors that are made of them. Knows nothing about models or queues."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from enginewire.torch_engine.requests.pooling import Pooling, Shares


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step computed, in float32.

    `logits` [rows, vocab], one row per grant that samples, then one per position that is scored; `sums`
    [rows, width], one row per grant that embeds: its share of the vector.
    """

    logits: Tensor
    sums: Tensor


NO_SUMS = torch.empty(0, 0)


def add_up(states: Tensor, shares: Shares) -> Tensor:
    """The sums [pieces, width] on the CPU. `states` [len(shares.rows), width] are the rows that count."""
    weights = torch.tensor(shares.weights, device=states.device)
    owners = torch.tensor(shares.owners, dtype=torch.int64, device=states.device)
    sums = torch.zeros(shares.num_pieces, states.shape[1], device=states.device)
    return sums.index_add_(0, owners, states.float() * weights[:, None]).cpu()


def finish_vector(total: Tensor, pooling: Pooling) -> list[float] | None:
    """The vector of an input whose pieces are all in `total` [width]; None when it is not finite."""
    vector = total[: pooling.dimensions]
    if pooling.normalize:
        vector = normalize(vector, dim=0)
    return vector.tolist() if vector.isfinite().all() else None
