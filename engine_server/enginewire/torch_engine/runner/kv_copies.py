"""Keys and values of the first tokens of a sequence as plain bytes, out of the cache and into it.

The bytes hold layer by layer the keys and then the values, each [tokens, heads, dim], so that engines of
different block sizes can read each other. Knows nothing about files, schedulers or requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq

import torch
from torch import Tensor

from enginewire.server.handoff.file_format import KvLayout
from enginewire.torch_engine.layers.attention import KvTensors


def kv_layout(cache: KvTensors, model: str) -> KvLayout:
    """What another engine must have in common; `model` is a digest."""
    like = cache.keys[0]
    layers = tuple(
        (keys.shape[2], keys.shape[3], values.shape[3])
        for keys, values in zip(cache.keys, cache.values, strict=True)
    )
    return KvLayout(model, str(like.dtype).removeprefix("torch."), like.element_size(), layers)


def read_kv(cache: KvTensors, block_table: Seq[int], num_tokens: int) -> memoryview:
    """A copy of the first `num_tokens` tokens of a sequence."""
    slots = _slots(cache, block_table, 0, num_tokens)
    parts = [stored.index_select(0, slots).view(torch.uint8).flatten() for stored in _stores(cache)]
    return torch.cat(parts).cpu().numpy().data


def write_kv(
    cache: KvTensors, block_table: Seq[int], payload: bytearray, first: int, num_tokens: int
) -> None:
    """Store what `read_kv` has read of `num_tokens` tokens, from token `first` on."""
    if first >= num_tokens:
        return
    slots = _slots(cache, block_table, first, num_tokens)
    offset = 0
    for stored in _stores(cache):
        shape = (num_tokens, *stored.shape[1:])
        count = shape[0] * shape[1] * shape[2]
        part = torch.frombuffer(payload, dtype=stored.dtype, count=count, offset=offset).view(shape)
        stored.index_copy_(0, slots, part[first:].to(stored.device))
        offset += count * stored.element_size()


def _stores(cache: KvTensors) -> Iterator[Tensor]:
    """Keys and values of each layer as [token slots, heads, dim]."""
    for keys, values in zip(cache.keys, cache.values, strict=True):
        yield keys.flatten(0, 1)
        yield values.flatten(0, 1)


def _slots(cache: KvTensors, block_table: Seq[int], first: int, end: int) -> Tensor:
    size = cache.block_size
    device = cache.keys[0].device
    blocks = torch.tensor(block_table[: -(-end // size)], dtype=torch.int64, device=device)
    slots = blocks[:, None] * size + torch.arange(size, device=device)
    return slots.flatten()[first:end]
