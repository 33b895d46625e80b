"""Rotary position embedding: the frequencies of each scaling variant, and the rotation.

Knows nothing about layers or caches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from enginewire.torch_engine.folder.config import Rope


class Rotary:
    """Cosines and sines for positions; `head_dim` / 2 frequencies."""

    def __init__(self, rope: Rope, head_dim: int, device: torch.device) -> None:
        inv_freq, self.attention_factor = rope_frequencies(rope, head_dim)
        self.inv_freq = inv_freq.to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine, each [tokens, 1, head_dim / 2], computed in float32."""
        angles = (positions.float()[:, None] * self.inv_freq)[:, None, :]
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return cos.to(dtype), sin.to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [tokens, heads, head_dim], whose halves are the two components of each pair."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rope_frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] and the factor on cosine and sine."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inv_freq / rope.scaling["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(inv_freq, rope.scaling), 1.0
    if rope.kind == "yarn":
        return _yarn(inv_freq, rope, head_dim)
    return inv_freq, 1.0


def _llama3(inv_freq: Tensor, scaling: dict[str, float]) -> Tensor:
    """Keep fast frequencies, divide slow ones by `factor`, blend between the two."""
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
    turns = context / (2 * math.pi / inv_freq)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * inv_freq / factor + blend * inv_freq


def _yarn(inv_freq: Tensor, rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Interpolate the dimensions that turn rarely within the original context."""
    scaling, factor = rope.scaling, rope.scaling["factor"]
    low = _yarn_dimension(scaling.get("beta_fast") or 32.0, rope, head_dim)
    high = _yarn_dimension(scaling.get("beta_slow") or 1.0, rope, head_dim)
    if scaling.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    ramp = (torch.arange(head_dim // 2).float() - low) / max(high - low, 0.001)
    interpolate = ramp.clamp(0.0, 1.0)
    scaled = inv_freq / factor * interpolate + inv_freq * (1 - interpolate)
    return scaled, _yarn_attention_factor(scaling, factor)


def _yarn_dimension(turns: float, rope: Rope, head_dim: int) -> float:
    """The dimension that turns `turns` times over the original context."""
    context = rope.scaling["original_max_position_embeddings"]
    return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_attention_factor(scaling: dict[str, float], factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    if "attention_factor" in scaling:
        return scaling["attention_factor"]
    mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all:
        return magnitude(mscale) / magnitude(mscale_all)
    return magnitude(1.0)
