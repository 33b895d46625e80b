"""Attention of a whole step in one call per layer: flash attention over the block tables, on CUDA.

The kernel is torch's own (`torch.nn.attention.varlen`, from 2.13 on with block tables). Which sizes of blocks
and heads it takes depends on the GPU and on what else is installed, so it is tried once, before the first
request. Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence as Seq
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import (
    AttentionPlan,
    KvTensors,
    Reading,
    Span,
    VarlenRows,
    plan_attention,
    token_slots,
)
from enginewire.torch_engine.layers.device import send
from enginewire.torch_engine.layers.flat_inputs import EmbeddedRows, FlatInputs
from enginewire.torch_engine.layers.ops import TorchOps
from enginewire.torch_engine.layers.rotary import rotate

log = logging.getLogger(__name__)

HALF = (torch.bfloat16, torch.float16)
TOLERANCE = 0.03
"""How far a sound kernel may be from plain torch in half precision, for values around 1."""

Kernel = Callable[..., Tensor]
"""The signature of `torch.nn.attention.varlen.varlen_attn`."""


class VarlenOps(TorchOps):
    """`LayerOps` whose attention is one call of the kernel for prefill chunks and decodes together."""

    reading: Reading = "varlen"

    def __init__(self, kernel: Kernel, *, takes_key_ends: bool = True) -> None:
        self.kernel = kernel
        self.takes_key_ends = takes_key_ends

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
        rows = plan.varlen
        assert rows is not None, "the plan was made for other operations"
        # One query at the end sees everything. Only when the kernel is told that nothing is hidden, it reads
        # keys once for all the heads that share them.
        last_seen = -1 if window is None and rows.longest_new == 1 else 0
        attended = self.kernel(
            self._rotate_and_write(heads, rotation, plan.slots, cache, layer),
            cache.keys[layer],
            cache.values[layer],
            rows.query_ends,
            rows.key_ends if self.takes_key_ends else None,
            rows.longest_new,
            rows.longest_context,
            window_size=(-1 if window is None else window - 1, last_seen),
            enable_gqa=True,
            seqused_k=rows.contexts,
            block_table=rows.blocks,
            # More splits read blocks wrongly in torch 2.13, and make a result depend on its neighbours.
            num_splits=1,
        )
        return attended.flatten(1)

    def _rotate_and_write(
        self, heads: Tensor, rotation: tuple[Tensor, Tensor], slots: Tensor, cache: KvTensors, layer: int
    ) -> Tensor:
        """Keys and values go to the cache; returns the query [tokens, num_heads, head_dim]."""
        kv_heads = cache.keys[layer].shape[2]
        query, keys, values = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        cache.write(layer, slots, rotate(keys, *rotation), values)
        return rotate(query, *rotation)


def send_inputs(
    spans: Seq[Span],
    token_ids: list[int],
    sampled: list[int],
    block_size: int,
    device: torch.device,
    embedded: EmbeddedRows | None = None,
) -> FlatInputs:
    """Bring a step to the device in one copy. `spans` and tokens are in batch order."""
    width = max(len(span.block_table) for span in spans)
    contexts = [span.context for span in spans]
    integers = send(
        [
            [0, *accumulate(span.num_new for span in spans)],
            [0, *accumulate(contexts)],
            contexts,
            [block for span in spans for block in _padded(span.block_table, width)],
            token_ids,
            [place for span in spans for place in range(span.context - span.num_new, span.context)],
            token_slots(spans, block_size),
            sampled,
        ],
        device,
    )
    query_ends, key_ends, used, blocks = integers[:4]
    tokens, positions, slots, rows = (column.long() for column in integers[4:])
    longest_new = max(span.num_new for span in spans)
    varlen = VarlenRows(query_ends, key_ends, used, blocks.view(-1, width), longest_new, max(contexts))
    return FlatInputs(tokens, positions, rows, AttentionPlan(slots, [], varlen=varlen), embedded)


def find_kernel() -> Kernel | None:
    """torch's kernel, if this torch has one that reads block tables."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes_blocks = "block_table" in inspect.signature(varlen_attn).parameters
    return cast(Kernel, varlen_attn) if takes_blocks else None


def varlen_ops(
    device: torch.device, dtype: torch.dtype, head_counts: tuple[int, int, int], block_size: int
) -> VarlenOps | None:
    """The kernel for (heads, KV heads, head size) and blocks of `block_size` tokens; None where it fails.

    It takes half precision only.
    """
    if device.type != "cuda" or dtype not in HALF:
        return None
    kernel = find_kernel()
    if kernel is None:
        log.warning("attention runs in plain torch, which is slow: torch 2.13 has a kernel for it")
        return None
    return try_kernel(kernel, device, dtype, head_counts, block_size)


def try_kernel(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    head_counts: tuple[int, int, int],
    block_size: int,
) -> VarlenOps | None:
    """Compare the kernel with plain torch on a chunk beside a decode; None when it cannot do that."""
    reason = ""
    # Flash attention 2 wants to be told where keys end although it reads block tables, 3 refuses to be told.
    for ops in (VarlenOps(kernel), VarlenOps(kernel, takes_key_ends=False)):
        try:
            error = attention_error(ops, device, dtype, head_counts, block_size)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as failure:
            reason = reason or str(failure).partition("\n")[0]
        else:
            if error < TOLERANCE:
                return ops
            reason = reason or "it computes something else"
    log.warning(
        "attention runs in plain torch, which is slow: the kernel does not take KV blocks of %d tokens here "
        "(%s); flash attention 2 needs blocks of 256 (--block-size)",
        block_size,
        reason,
    )
    return None


@torch.inference_mode()
def attention_error(
    ops: VarlenOps,
    device: torch.device,
    dtype: torch.dtype,
    head_counts: tuple[int, int, int],
    block_size: int,
) -> float:
    """The largest difference to plain torch: of a decode beside a chunk, and of decodes alone."""
    heads, kv_heads, head_dim = head_counts
    like = torch.empty(0, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(like)

    stored = randn(2, 4, block_size, kv_heads, head_dim)

    def attended(
        tried: TorchOps, plan: AttentionPlan, new: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        cache = KvTensors(1, (4, block_size, kv_heads, head_dim), like)
        cache.keys[0].copy_(stored[0])
        cache.values[0].copy_(stored[1])
        return tried.attend(new.clone(), rotation, plan, cache, 0, None).float()

    largest = 0.0
    for num_new in (2, 1):
        spans = [Span(1, block_size + 1, [3, 1]), Span(num_new, block_size + 2, [0, 2])]
        rows = 1 + num_new
        new, angles = randn(rows, heads + 2 * kv_heads, head_dim), randn(rows, 1, head_dim // 2)
        rotation = angles.cos(), angles.sin()
        ours = send_inputs(spans, [0] * rows, [0], block_size, device).plan
        plain = plan_attention(spans, block_size, frozenset({None}), like)
        error = attended(ops, ours, new, rotation) - attended(TorchOps(), plain, new, rotation)
        largest = max(largest, float(error.abs().nan_to_num(nan=torch.inf).max()))
    return largest


def _padded(table: list[int], width: int) -> list[int]:
    return table + [0] * (width - len(table))
