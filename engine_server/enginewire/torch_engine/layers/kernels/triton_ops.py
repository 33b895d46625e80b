"""What a layer does between its products, as one Triton kernel each instead of a dozen of torch's. CUDA only.

torch for CUDA brings Triton along. Knows nothing about plans, weights or models.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS = 8
"""Heads of a token that one program turns."""
COLUMNS = 1024
"""Of a row that one program gates."""


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm(normed, value, weight, eps, size, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * size
    columns = tl.arange(0, width)
    here = columns < size
    wide = tl.load(value + row + columns, mask=here, other=0.0).to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    weights = tl.load(weight + columns, mask=here, other=0.0)
    # Rounded as often as plain torch rounds.
    rounded = wide.to(weights.dtype).to(tl.float32) * weights.to(tl.float32)
    tl.store(normed + row + columns, rounded.to(weights.dtype), mask=here)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(gated, gate_up, size, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * size
    columns = tl.program_id(1) * width + tl.arange(0, width)
    here = columns < size
    gate = tl.load(gate_up + 2 * row + columns, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + 2 * row + size + columns, mask=here, other=0.0)
    rounded = (gate * tl.sigmoid(gate)).to(up.dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(gated + row + columns, rounded.to(up.dtype), mask=here)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_write(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    heads,
    cos,
    sin,
    slots,
    num_heads,
    kv_heads,
    half: tl.constexpr,
    width: tl.constexpr,
    count: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * count + tl.arange(0, count)[:, None]
    pair = tl.arange(0, width)[None, :]
    first_key, first_value, end = num_heads, num_heads + kv_heads, num_heads + 2 * kv_heads
    here = (head < end) & (pair < half)
    source = heads + (token * end + head) * 2 * half + pair
    first = tl.load(source, mask=here, other=0.0)
    second = tl.load(source + half, mask=here, other=0.0)
    wide_cos = tl.load(cos + token * half + pair, mask=pair < half, other=0.0).to(tl.float32)
    wide_sin = tl.load(sin + token * half + pair, mask=pair < half, other=0.0).to(tl.float32)
    wide, other = first.to(tl.float32), second.to(tl.float32)
    turned = (wide * wide_cos - other * wide_sin).to(first.dtype)
    turned_other = (other * wide_cos + wide * wide_sin).to(first.dtype)

    place = query + (token * num_heads + head) * 2 * half + pair
    mine = here & (head < first_key)
    tl.store(place, turned, mask=mine)
    tl.store(place + half, turned_other, mask=mine)

    slot = tl.load(slots + token)
    place = keys + (slot * kv_heads + head - first_key) * 2 * half + pair
    mine = here & (head >= first_key) & (head < first_value)
    tl.store(place, turned, mask=mine)
    tl.store(place + half, turned_other, mask=mine)

    place = values + (slot * kv_heads + head - first_value) * 2 * half + pair
    mine = here & (head >= first_value)
    tl.store(place, first, mask=mine)
    tl.store(place + half, second, mask=mine)


def rms_norm(value: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `LayerOps`."""
    value = value.contiguous()
    normed = torch.empty_like(value)
    size = len(weight)
    width = triton.next_power_of_2(size)
    _rms_norm[(value.numel() // size,)](normed, value, weight, eps, size, width)
    return normed


def gate(gate_up: Tensor) -> Tensor:
    """See `LayerOps`."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    gated = gate_up.new_empty(rows, size)
    _gate[(rows, triton.cdiv(size, COLUMNS))](gated, gate_up.contiguous(), size, COLUMNS)
    return gated


def rotate_and_write(
    heads: Tensor, rotation: tuple[Tensor, Tensor], slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Turned query heads [tokens, num_heads, head_dim]; turned keys and values go to their slots.

    `heads` are those of `LayerOps.attend`; `keys` and `values` are one layer of `KvTensors`.
    """
    tokens, end, head_dim = heads.shape
    kv_heads = keys.shape[2]
    query = heads.new_empty(tokens, end - 2 * kv_heads, head_dim)
    half = head_dim // 2
    sizes = end - 2 * kv_heads, kv_heads, half, triton.next_power_of_2(half), HEADS
    grid = tokens, triton.cdiv(end, HEADS)
    _rotate_and_write[grid](query, keys, values, heads.contiguous(), *rotation, slots, *sizes)
    return query
