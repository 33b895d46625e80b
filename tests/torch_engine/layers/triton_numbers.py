"""Runs the Triton kernels in Triton's interpreter, beside plain torch; prints the largest differences.

Those of halves relative to what torch has, as multiples of the step between two halves: both round the same
number of 32 bits but for its last bit, which decides where that number lies between two halves.

A process of its own: whether Triton interprets is decided when it is imported.

    TRITON_INTERPRET=1 python -m tests.torch_engine.layers.triton_numbers SEED
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import KvTensors
from enginewire.torch_engine.layers.fused_ops import FusedOps
from enginewire.torch_engine.layers.kernels import triton_ops
from enginewire.torch_engine.layers.ops import TorchOps
from enginewire.torch_engine.layers.rotary import rotate
from enginewire.torch_engine.layers.varlen_ops import VarlenOps
from tests.torch_engine.layers.varlen_emulation import varlen_attn

ROWS = 7
BLOCKS, BLOCK_SIZE = 5, 4
UNTOUCHED = 9.0
HALVES = torch.finfo(torch.float16)


def differences(dtype: torch.dtype) -> dict[str, float]:
    """By what was computed. Sizes are no powers of two and larger than what one program takes."""
    ops, plain = FusedOps(VarlenOps(varlen_attn), triton_ops), TorchOps()

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    value, weight = randn(ROWS, 96), randn(96)
    heads = randn(ROWS, 3, 96)
    gate_up = randn(ROWS, 2 * 1500)
    return {
        "norm": apart(ops.rms_norm(value, weight, 1e-6), plain.rms_norm(value, weight, 1e-6)),
        "norm of heads": apart(
            ops.rms_norm(heads[:, :2], weight, 1e-6), plain.rms_norm(heads[:, :2], weight, 1e-6)
        ),
        "gate": apart(ops.gate(gate_up), plain.gate(gate_up)),
        **rotated(ops, dtype, num_heads=6, kv_heads=2, head_dim=20),
        **rotated(ops, dtype, num_heads=14, kv_heads=7, head_dim=16),
    }


def rotated(
    ops: FusedOps, dtype: torch.dtype, num_heads: int, kv_heads: int, head_dim: int
) -> dict[str, float]:
    like = torch.empty(0, dtype=dtype)
    cache = KvTensors(2, (BLOCKS, BLOCK_SIZE, kv_heads, head_dim), like)
    for stored in (*cache.keys, *cache.values):
        stored.fill_(UNTOUCHED)
    heads = torch.randn(ROWS, num_heads + 2 * kv_heads, head_dim).to(dtype)
    angles = torch.randn(ROWS, 1, head_dim // 2)
    rotation = angles.cos().to(dtype), angles.sin().to(dtype)
    slots = torch.randperm(BLOCKS * BLOCK_SIZE)[:ROWS]
    query = ops._rotate_and_write(heads, rotation, slots, cache, 1)
    turned = rotate(heads.float(), *(part.float() for part in rotation)).to(dtype)
    keys, values = (torch.full((BLOCKS * BLOCK_SIZE, kv_heads, head_dim), UNTOUCHED) for _ in range(2))
    keys[slots] = turned[:, num_heads : num_heads + kv_heads].float()
    values[slots] = heads[:, num_heads + kv_heads :].float()
    return {
        f"query of {num_heads} heads": apart(query, turned[:, :num_heads]),
        f"keys of {num_heads} heads": apart(cache.keys[1].flatten(0, 1), keys),
        f"values of {num_heads} heads": apart(cache.values[1].flatten(0, 1), values),
        f"other layer of {num_heads} heads": apart(cache.keys[0], torch.full_like(cache.keys[0], UNTOUCHED)),
    }


def apart(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    difference = (found.float() - wanted.float()).abs().nan_to_num(nan=torch.inf)
    if found.dtype is torch.float16:
        difference /= wanted.float().abs().clamp(min=HALVES.tiny) * HALVES.eps
    return float(difference.max())


def main(seed: int) -> None:
    torch.manual_seed(seed)
    for dtype in (torch.float32, torch.float16):
        for name, difference in differences(dtype).items():
            print(f"{str(dtype).removeprefix('torch.')}\t{name}\t{difference}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
