"""Numbers in fewer bits: rows in 8-bit steps, and heads as the KV cache holds them.

In a cache of int8 each head of a token has steps of its own; behind its numbers lies what a step is worth,
as the four bytes of a float32. Knows nothing about layers, blocks or kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_STEP = 1e-30
"""A row of zeros has no scale of its own."""
SCALE_BYTES = 4


def step_sizes(rows: Tensor, steps: int = 127) -> Tensor:
    """What one of so many steps on each side of zero is worth in each row: [rows, 1]."""
    return (rows.abs().amax(-1, keepdim=True) / steps).clamp_(min=SMALLEST_STEP)


def stored_size(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of `dtype` that a head takes in the cache."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def to_stored(heads: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., head_dim] as the cache holds it. A head with NaN or infinity in it stays unusable."""
    if dtype != torch.int8:
        return heads.to(dtype)
    wide = heads.float()
    sizes = step_sizes(wide)
    return torch.cat(((wide / sizes).round_().to(dtype), sizes.view(dtype)), dim=-1)


def from_stored(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., head_dim] in `dtype`, which the model computes in."""
    if stored.dtype != torch.int8:
        return stored.to(dtype)
    sizes = stored[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return (stored[..., :-SCALE_BYTES] * sizes).to(dtype)
