"""What a model computes in one step: the new tokens of all sequences in one flat batch, as tensors.

Knows nothing about models, queues or weights.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import AttentionPlan
from enginewire.torch_engine.requests.scheduled import Scheduled


@dataclass(frozen=True, slots=True)
class FlatInputs:
    """The inputs of one step on the device; the tensors are int64.

    Logits are wanted of the rows `sampled`. The token ids of `embedded` rows are not looked up.
    """

    token_ids: Tensor
    positions: Tensor
    sampled: Tensor
    plan: AttentionPlan
    embedded: EmbeddedRows | None = None


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """`rows` [count] of the flat batch, and their embeddings, `values` [count, width]."""

    rows: Tensor
    values: Tensor

    def put_into(self, hidden: Tensor) -> None:
        """Replace these rows of the flat batch [tokens, width]."""
        hidden.index_copy_(0, self.rows, self.values.to(hidden.dtype))


def embedded_rows(batch: Seq[Scheduled], device: torch.device) -> EmbeddedRows | None:
    """The tokens of a batch, in its order, whose prompts are embeddings; None when there are none."""
    rows: list[int] = []
    values: list[Tensor] = []
    first_row = 0
    for grant in batch:
        embeds, begin = grant.sequence.request.prompt_embeds, grant.sequence.num_computed_tokens
        if embeds is not None and begin < embeds.num_tokens:
            end = min(begin + grant.num_tokens, embeds.num_tokens)
            dtype = getattr(torch, embeds.dtype)
            values.append(torch.frombuffer(embeds.rows(begin, end), dtype=dtype).view(-1, embeds.width))
            rows += range(first_row, first_row + end - begin)
        first_row += grant.num_tokens
    if not rows:
        return None
    joined = torch.cat([value.float() for value in values])
    return EmbeddedRows(torch.tensor(rows, device=device), joined.to(device))
