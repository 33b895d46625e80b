"""`torch.nn.attention.varlen.varlen_attn` in plain torch, as far as the engine uses it, and as strict."""

from __future__ import annotations

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Causal attention over a block table, one query at a time."""
    assert seqused_k is not None
    assert block_table is not None
    assert {tensor.dtype for tensor in (cu_seq_q, seqused_k, block_table)} == {torch.int32}
    assert cu_seq_k is None or cu_seq_k.diff().equal(seqused_k)
    assert window_size[1] == 0 or (window_size == (-1, -1) and max_q == 1), "nobody sees what comes later"
    assert num_splits == 1, "more splits are broken in torch 2.13"
    assert enable_gqa or query.shape[1] == key.shape[2]
    assert query.is_contiguous()
    assert int(cu_seq_q.diff().max()) <= max_q
    assert int(seqused_k.max()) <= max_k
    result = torch.full_like(query, float("nan"))
    for i, context in enumerate(seqused_k.tolist()):
        first, end = cu_seq_q[i : i + 2].tolist()
        blocks = block_table[i, : -(-context // key.shape[1])].long()
        keys, values = (stored[blocks].flatten(0, 1)[:context].float() for stored in (key, value))
        for row in range(first, end):
            last = context - (end - row) + 1
            begin = 0 if window_size[0] < 0 else max(last - 1 - window_size[0], 0)
            result[row] = _attend(query[row].float(), keys[begin:last], values[begin:last], scale)
    return result


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
    shared = query.shape[0] // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    scores = torch.einsum("hd,thd->ht", query, keys) * (scale or query.shape[-1] ** -0.5)
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)
