"""Paged attention in plain torch: the KV tensors, and who attends to what in one step.

The batch is flat: all new tokens of all sequences in one row of tensors. `plan_attention` splits
it into groups once per step; every layer then runs the same groups. Decodes of similar length
share a group, each prefill chunk is one of its own.

Knows block tables and lengths; nothing about sequences, weights or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from enginewire.torch_engine.layers.device import send_index
from enginewire.torch_engine.layers.rounding import from_stored, stored_size, to_stored

Reading = Literal["groups", "ragged", "rows", "varlen"]
"""How layers read the cache: padded groups; kernels of our own for the tokens of decodes, each with its own
length, and for prefill chunks (ragged), or the one for decodes for every token (rows); one kernel for all
sequences of any length."""

MAX_PADDING = 1.5
"""A decode group reads its longest context for every row: at most this times what a row needs."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in the flat batch: `num_new` tokens at the end of `context` tokens.

    With `as_decodes` the tokens have been decoded before, one by one, and their bits should come out again.
    """

    num_new: int
    context: int
    block_table: list[int]
    as_decodes: bool = False

    @property
    def rows(self) -> list[Span]:
        """The new tokens one by one, each at the end of what it sees."""
        contexts = range(self.context - self.num_new + 1, self.context + 1)
        return [Span(1, context, self.block_table) for context in contexts]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows that attend together: S sequences with T new tokens each (S or T is 1).

    `blocks` is [S, B]; the masks are additive and broadcast to [S, 1, T, context], keyed by the
    sliding window of a layer (None: full attention). A mask that is None is the causal one.
    """

    rows: slice
    num_new: int
    context: int
    blocks: Tensor
    masks: dict[int | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """The first rows of the batch, one new token each: `blocks` [rows, B] and `contexts` [rows], int32."""

    blocks: Tensor
    contexts: Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """The `num_new` rows of a prefill chunk, at the end of `context` tokens in `blocks` [B], int32."""

    rows: slice
    num_new: int
    context: int
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class VarlenRows:
    """All S sequences of a step for one call of a kernel; tensors are int32.

    Rows `query_ends[i]` to `query_ends[i + 1]` belong to sequence i, whose `contexts[i]` tokens lie in
    `blocks[i]`; `key_ends` are the sums of the contexts. Both ends are [S + 1].
    """

    query_ends: Tensor
    key_ends: Tensor
    contexts: Tensor
    blocks: Tensor
    longest_new: int
    longest_context: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where this step writes (`slots`, [tokens]); who reads: `varlen`, or `ragged` and chunks, or groups."""

    slots: Tensor
    groups: list[AttentionGroup] = field(default_factory=list)
    ragged: RaggedRows | None = None
    chunks: list[Chunk] = field(default_factory=list)
    varlen: VarlenRows | None = None


class KvTensors:
    """Keys and values per layer, each [blocks, block_size, kv_heads, head_dim].

    They come and go in the dtype of `like`, and lie there in `dtype`, the same when not given, with
    `stored_size` elements for a head.
    """

    def __init__(
        self,
        num_layers: int,
        shape: tuple[int, int, int, int],
        like: Tensor,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.block_size = shape[1]
        self._computed = like.dtype
        stored = *shape[:3], stored_size(shape[3], dtype or like.dtype)
        self._storage = like.new_empty((num_layers, 2, *stored), dtype=dtype)
        self.keys = list(self._storage[:, 0])
        self.values = list(self._storage[:, 1])

    def clear(self, blocks: Seq[int]) -> None:
        """Zero blocks that change hands.

        Attention reads whole blocks and hides the rest behind a mask, but a NaN that another
        request left there would come through: NaN × 0 is NaN.
        """
        if blocks:
            self._storage.index_fill_(2, send_index(blocks, self._storage.device), 0.0)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [tokens, kv_heads, head_dim] at the flat token slots."""
        for stored, new in ((self.keys[layer], keys), (self.values[layer], values)):
            stored.flatten(0, 1).index_copy_(0, slots, to_stored(new, stored.dtype))

    def read(self, layer: int, group: AttentionGroup) -> tuple[Tensor, Tensor]:
        """Gather both as [S, kv_heads, context, head_dim]."""
        return self._gather(self.keys[layer], group), self._gather(self.values[layer], group)

    def _gather(self, stored: Tensor, group: AttentionGroup) -> Tensor:
        # index_select copies whole blocks: up to five times as fast as indexing with [S, B] on a CPU.
        blocks = stored.index_select(0, group.blocks.flatten())
        tokens = blocks.view(len(group.blocks), -1, *stored.shape[2:])
        return from_stored(tokens[:, : group.context], self._computed).transpose(1, 2)


def plan_attention(
    spans: Seq[Span],
    block_size: int,
    windows: frozenset[int | None],
    like: Tensor,
    reading: Reading = "groups",
) -> AttentionPlan:
    """Plan one step. `spans` come in batch order: single tokens by context, those as decodes, the others."""
    assert reading != "varlen", "that plan travels to the device with the other inputs of the step"
    slots = send_index(token_slots(spans, block_size), like.device)
    if reading == "rows":
        return AttentionPlan(slots, ragged=_ragged(spans))
    if reading == "ragged":
        decodes = [span for span in spans if span.num_new == 1 or span.as_decodes]
        row = sum(span.num_new for span in decodes)
        chunks = _chunks(spans[len(decodes) :], row)
        return AttentionPlan(slots, ragged=_ragged(decodes) if decodes else None, chunks=chunks)
    groups, row = list[AttentionGroup](), 0
    for members in _group(spans):
        groups.append(_build_group(members, row, block_size, windows, like))
        row += sum(span.num_new for span in members)
    return AttentionPlan(slots, groups)


def token_slots(spans: Seq[Span], block_size: int) -> list[int]:
    """Where the new tokens go, as flat token slots of the cache."""
    return [
        span.block_table[position // block_size] * block_size + position % block_size
        for span in spans
        for position in range(span.context - span.num_new, span.context)
    ]


def attend(query: Tensor, cache: KvTensors, layer: int, group: AttentionGroup, window: int | None) -> Tensor:
    """Attention of one group: query and result are [S × T, heads, head_dim].

    Query heads that share a KV head become queries (decode) or heads (prefill) of one batch entry
    per KV head, so that keys and values are never repeated in memory.
    """
    keys, values = cache.read(layer, group)
    tokens, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    mask = group.masks[window]
    if group.num_new == 1 and mask is not None:
        folded = query.view(tokens, kv_heads, heads // kv_heads, head_dim)
        return _attend_once(folded, keys, values, mask).reshape(query.shape)
    folded = query.view(tokens, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    shape = (-1, heads // kv_heads, -1, -1)
    attended = scaled_dot_product_attention(
        folded, keys.expand(shape), values.expand(shape), mask, is_causal=mask is None
    )
    return attended.permute(2, 0, 1, 3).reshape(query.shape)


def _attend_once(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention with a few queries per KV head."""
    if query.device.type != "cpu" or query.dtype == torch.float32:
        return scaled_dot_product_attention(query, keys, values, mask)
    # torch's CPU kernel takes three times as long as plain products for so few half-precision queries.
    scale: float = query.shape[-1] ** -0.5
    scores = query @ keys.transpose(-1, -2) * scale + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ values


def _group(spans: Seq[Span]) -> list[Seq[Span]]:
    groups: list[list[Span]] = []
    for span in spans:
        last = groups[-1] if groups else None
        if last and span.num_new == last[0].num_new == 1 and span.context <= MAX_PADDING * last[0].context:
            last.append(span)
        else:
            groups.append([span])
    return list(groups)


def _ragged(spans: Seq[Span]) -> RaggedRows:
    """Every new token as a row of its own that ends with it."""
    longest = max(len(span.block_table) for span in spans)
    # What pads a row is never read.
    tables = [span.block_table + [0] * (longest - len(span.block_table)) for span in spans]
    blocks = torch.tensor(tables, dtype=torch.int32)
    contexts = [end for span in spans for end in range(span.context - span.num_new + 1, span.context + 1)]
    if len(contexts) > len(spans):
        blocks = blocks.repeat_interleave(torch.tensor([span.num_new for span in spans]), dim=0)
    return RaggedRows(blocks, torch.tensor(contexts, dtype=torch.int32))


def _chunks(spans: Seq[Span], row: int) -> list[Chunk]:
    made = list[Chunk]()
    for span in spans:
        blocks = torch.tensor(span.block_table, dtype=torch.int32)
        made.append(Chunk(slice(row, row + span.num_new), span.num_new, span.context, blocks))
        row += span.num_new
    return made


def _build_group(
    spans: Seq[Span], first_row: int, block_size: int, windows: frozenset[int | None], like: Tensor
) -> AttentionGroup:
    context, num_new = spans[-1].context, spans[0].num_new
    num_blocks = -(-context // block_size)
    table = [block for span in spans for block in _padded(span.block_table, num_blocks)]
    return AttentionGroup(
        rows=slice(first_row, first_row + num_new * len(spans)),
        num_new=num_new,
        context=context,
        blocks=send_index(table, like.device).view(len(spans), num_blocks),
        masks={window: _mask(spans, window, like) for window in windows},
    )


def _padded(table: list[int], num_blocks: int) -> list[int]:
    """Padding repeats the sequence's own block: the mask hides numbers, but not another's NaN."""
    return [*table[:num_blocks], *table[:1] * (num_blocks - len(table))]


def _mask(spans: Seq[Span], window: int | None, like: Tensor) -> Tensor | None:
    """0 where a query position [S, T] may look, -inf elsewhere: [S, 1, T, context]."""
    context, num_new = spans[-1].context, spans[0].num_new
    if window is None and 1 < num_new == context:
        return None
    lengths = send_index([span.context for span in spans], like.device)
    queries = (lengths[:, None] - num_new + torch.arange(num_new, device=like.device))[..., None]
    keys = torch.arange(context, device=like.device)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None]
