"""What a layer does between its projections, in plain torch. `CompiledOps` does the same faster.

Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from engine_server.torch_engine.attention import AttentionPlan, KvTensors, Reading, attend
from engine_server.torch_engine.rotary import rotate


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
