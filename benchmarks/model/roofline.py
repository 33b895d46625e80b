"""How quick a decode step could be on this machine, by the bytes it reads and the products it computes.

Both limits are measured where and when they are used. Knows the shapes of `workloads`, and no engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from workloads import QWEN_KV_HEADS, QWEN_VOCAB, SHAPES, VOCAB

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 4.625 / 8, "int8_per_token_head": 1}
HEAD_BYTES = BYTES | {"int4": 1}
"""Whoever has fewer bits keeps 8 for the head."""
READ_BYTES = 1 << 29
"""Of one reading: more than any cache holds."""
ROWS = 512


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine gives with all its threads."""

    bytes_per_s: float
    flops_per_s: float


def measure(weights: str, rounds: int = 5) -> Machine:
    """Read memory, and multiply matrices of `weights` (a key of BYTES): the best of some rounds."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    words = torch.ones(READ_BYTES // 8, dtype=torch.int64)
    size = 2048
    whole = weights in ("int8", "int4")  # both are multiplied in 8 bits
    kind = torch.int8 if whole else getattr(torch, weights)
    left, right = torch.ones(ROWS, size, dtype=kind), torch.ones(size, size, dtype=kind)
    product = torch._int_mm if whole else torch.mm
    return Machine(
        bytes_per_s=READ_BYTES / best(words.sum, rounds),
        flops_per_s=2 * ROWS * size * size / best(lambda: product(left, right), rounds),
    )


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the quickest round, after one that does not count."""
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def decode_tokens_per_s(
    machine: Machine, shape: str, weights: str, dtype: str, batch: int, context: int
) -> float:
    """The most that `batch` requests with `context` tokens each could get in all.

    Each step reads every weight once, and the keys and values of every request.
    """
    hidden, inner, layers, heads = SHAPES[shape]
    qwen = shape == "500m"
    vocab = QWEN_VOCAB if qwen else VOCAB
    kv = hidden // heads * (QWEN_KV_HEADS if qwen else heads)
    projections = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)
    head = hidden * vocab
    cached = 2 * layers * kv * context * batch
    read = projections * BYTES[weights] + head * HEAD_BYTES[weights] + cached * BYTES[dtype]
    computed = 2 * batch * (projections + head + 2 * layers * hidden * context)
    return batch / max(read / machine.bytes_per_s, computed / machine.flops_per_s)
