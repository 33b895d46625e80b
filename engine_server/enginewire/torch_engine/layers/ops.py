"""What a layer does between its projections, in plain torch. `CompiledOps` does the same faster.

Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from enginewire.torch_engine.layers.attention import AttentionPlan, KvTensors, Reading, attend
from enginewire.torch_engine.layers.rotary import rotate
from enginewire.torch_engine.layers.rounding import step_sizes

ROUNDED_ZERO = 128
"""Where rows that are rounded to 8 bits have their zero."""


class LayerOps(Protocol):
    """The small operations of a layer; values are flat, [tokens, ...]."""

    reading: Reading
    """What plans are made for."""

    def rms_norm(self, value: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm over the last dimension, computed in float32."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """SiLU of the first half of the last dimension times the second half."""
        ...

    def round_rows(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """8-bit steps around 128 (uint8), and what a step of each row is worth (float32 [rows, 1]).

        A row with NaN or infinity in it has no finite scale.
        """
        ...

    def attend(
        self,
        heads: Tensor,
        rotation: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        cache: KvTensors,
        layer: int,
        window: int | None,
    ) -> Tensor:
        """Rotate, write to the cache and attend: [tokens, query heads × head_dim].

        `heads` are query, key and value heads, [tokens, num_heads + 2 × kv_heads, head_dim]; they may
        be changed.
        """
        ...


class TorchOps:
    """Plain torch: works on every device and dtype."""

    reading: Reading = "groups"

    def rms_norm(self, value: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `LayerOps`."""
        wide = value.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * wide.to(value.dtype)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `LayerOps`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up

    def round_rows(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerOps`."""
        wide = value.float()
        scales = step_sizes(wide)
        # Unsigned with its zero in the middle: processors have no fast product of signed with signed.
        return (wide / scales).round_().add_(ROUNDED_ZERO).to(torch.uint8), scales

    def attend(
        self,
        heads: Tensor,
        rotation: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        cache: KvTensors,
        layer: int,
        window: int | None,
    ) -> Tensor:
        """See `LayerOps`."""
        kv_heads = cache.keys[layer].shape[2]
        query, keys, values = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        query, keys = rotate(query, *rotation), rotate(keys, *rotation)
        cache.write(layer, plan.slots, keys, values)
        attended = torch.empty_like(query)
        for group in plan.groups:
            attended[group.rows] = attend(query[group.rows], cache, layer, group, window)
        return attended.flatten(1)
