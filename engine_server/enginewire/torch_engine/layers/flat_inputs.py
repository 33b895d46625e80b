"""What a model computes in one step: the new tokens of all sequences in one flat batch, as tensors.

Knows nothing about requests, schedulers or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from enginewire.torch_engine.layers.attention import AttentionPlan
from enginewire.torch_engine.layers.embedded_rows import EmbeddedRows


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
