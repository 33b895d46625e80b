"""Paged attention for the models of transformers: their attention interface on our KV blocks.

A model that is switched to `PAGED` calls back here once per attention layer. What happens then is
decided by the pass that is current: `PagedPass` attends through the cache, `ShapePass` only writes
down what the layers ask for. Layers are told apart by the order of their calls.

Knows nothing about architectures, folders or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from enginewire.torch_engine.layers.attention import AttentionPlan, KvTensors
from enginewire.torch_engine.layers.device import send_index
from enginewire.torch_engine.layers.rounding import stored_size

PAGED = "enginewire_paged"
"""No mask is registered under this name: transformers then builds none."""
OBSERVED = "enginewire_observed"
"""With a mask of its own, by which every layer tells how far it looks back."""
MARK = 1000.0
"""The first mask that an observed model builds holds this number everywhere, the next one more."""


IGNORED_OPTIONS = frozenset(
    {
        "dropout",
        "is_causal",
        "logits_to_keep",
        "output_attentions",
        "output_router_logits",
        "position_ids",
        "sliding_window",
        "use_cache",
    }
)
"""Options of attention that say nothing new: nothing is dropped, masks and positions are known, and which
logits are kept is the head's matter."""
OWN_MASK = "it masks attention in a way of its own"


class UnsupportedAttentionError(Exception):
    """A layer asks for something that paged attention does not do; the message says what."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one layer caches per token: `heads` keys of `key_dim` and values of `value_dim`."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each key and each value of a token has."""
        return (self.key_dim, self.value_dim) * self.heads


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's question: `query` [tokens, heads, key_dim], `keys` and `values` of the new tokens.

    `mask` is what transformers built for the layer, `softcap` bounds the scores, `sinks` [heads] are
    scores that take part in the softmax and stand for nothing.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    scale: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def kv_shape(self) -> KvShape:
        """What the cache must hold for this layer."""
        return KvShape(self.keys.shape[1], self.keys.shape[2], self.values.shape[2])


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a layer looks back: a sliding `window`, or chunks of `chunk` tokens, or everything.

    `is_plain` is False for a mask that is none of these.
    """

    window: int | None = None
    chunk: int | None = None
    is_plain: bool = True


class AttentionPass(Protocol):
    """One forward pass as its attention layers see it."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Answer the next layer with [tokens, heads, value_dim]."""
        ...


class LayeredKvTensors(KvTensors):
    """Keys and values per layer, where every layer may have a shape of its own."""

    def __init__(
        self,
        shapes: Seq[KvShape],
        num_blocks: int,
        block_size: int,
        like: Tensor,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.block_size = block_size
        self._computed = like.dtype

        def empty(heads: int, dim: int) -> Tensor:
            size = stored_size(dim, dtype or like.dtype)
            return like.new_empty((num_blocks, block_size, heads, size), dtype=dtype)

        self.keys = [empty(shape.heads, shape.key_dim) for shape in shapes]
        self.values = [empty(shape.heads, shape.value_dim) for shape in shapes]

    def clear(self, blocks: Seq[int]) -> None:
        """Zero blocks that change hands."""
        if blocks:
            index = send_index(blocks, self.keys[0].device)
            for stored in (*self.keys, *self.values):
                stored.index_fill_(0, index, 0.0)


class PagedPass:
    """Writes the new keys and values into the cache and attends over all that the plan allows."""

    def __init__(self, plan: AttentionPlan, cache: KvTensors, windows: Seq[int | None]) -> None:
        self._plan = plan
        self._cache = cache
        self._windows = windows
        self._layer = 0

    def attend(self, call: AttentionCall) -> Tensor:
        """See `AttentionPass`."""
        if call.mask is not None:
            raise UnsupportedAttentionError(OWN_MASK)
        layer, self._layer = self._layer, self._layer + 1
        self._cache.write(layer, self._plan.slots, call.keys, call.values)
        attended = call.query.new_empty((*call.query.shape[:2], call.values.shape[2]))
        for group in self._plan.groups:
            keys, values = self._cache.read(layer, group)
            mask = group.masks[self._windows[layer]]
            attended[group.rows] = _attend_rows(call, group.rows, group.num_new, keys, values, mask)
        return attended


class PlainPass:
    """Every token attends to the ones before it in the flat batch, which is one sequence."""

    def attend(self, call: AttentionCall) -> Tensor:
        """See `AttentionPass`."""
        if call.mask is not None:
            raise UnsupportedAttentionError(OWN_MASK)
        keys, values = call.keys.transpose(0, 1)[None], call.values.transpose(0, 1)[None]
        return _attend_rows(call, slice(None), len(call.query), keys, values, None)


class ShapePass:
    """Records what every layer caches and how far it looks back; attends to nothing.

    `num_tokens_needed` is not 0 where a mask says how far only to a batch of that many.
    """

    def __init__(self) -> None:
        self.shapes: list[KvShape] = []
        self.reaches: list[Reach] = []
        self.num_tokens_needed = 0
        self._known_reaches: list[Reach] = []

    def attend(self, call: AttentionCall) -> Tensor:
        """See `AttentionPass`; the answer is zeros."""
        self.shapes.append(call.kv_shape)
        self.reaches.append(self._reach(call.mask))
        return call.query.new_zeros((*call.query.shape[:2], call.values.shape[2]))

    def mask(self, reach: Reach, like: Tensor) -> Tensor:
        """A mask that stands for `reach` and looks like any other: [1, 1, queries, keys]."""
        self._known_reaches.append(reach)
        return torch.full_like(like, MARK + len(self._known_reaches) - 1)

    def _reach(self, mask: Tensor | None) -> Reach:
        marks = [] if mask is None else torch.unique(mask).tolist()
        index = marks[0] - MARK if len(marks) == 1 else -1
        if index not in range(len(self._known_reaches)):
            raise UnsupportedAttentionError(OWN_MASK if marks else "a layer has no causal mask")
        reach = self._known_reaches[int(index)]
        if not reach.is_plain:
            raise UnsupportedAttentionError(OWN_MASK)
        return reach


_current: ContextVar[AttentionPass] = ContextVar("attention_pass")


@contextmanager
def attending(attention: AttentionPass) -> Iterator[None]:
    """Answer the attention layers with `attention` while the block runs, in this thread only."""
    token = _current.set(attention)
    try:
        yield
    finally:
        _current.reset(token)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """What transformers calls: tensors [1, heads, tokens, dim] in, [1, tokens, heads, dim] out.

    The option `sliding_window` is not read: the masks say the same, and for all architectures. An option that
    is not known is refused.
    """
    if not options.keys() <= IGNORED_OPTIONS:
        _refuse_unknown(options)
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedAttentionError("its attention looks ahead")
    if query.shape[2] != key.shape[2]:
        raise UnsupportedAttentionError("it attends to something else than its own tokens")
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(query, key, value, attention_mask, scale, softcap, s_aux)
    return _current.get().attend(call)[None], None


def _refuse_unknown(options: Mapping[str, object]) -> None:
    """An option that nobody here reads may change what the layer means, unless it is off."""
    for name, value in options.items():
        if value is not None and value is not False and name not in IGNORED_OPTIONS:
            raise UnsupportedAttentionError(f"its attention needs the option {name}, which is not supported")


MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _observed_mask(
    *,
    q_length: int,
    kv_length: int,
    mask_function: MaskFunction,
    local_size: int | None = None,
    use_vmap: bool = False,
    **options: object,
) -> Tensor:
    """What transformers calls to build a mask, once per kind of layer."""
    shapes = _current.get()
    assert isinstance(shapes, ShapePass), "a mask is asked for only while a model is observed"
    try:
        reach = Reach(is_plain=False) if use_vmap else _read_reach(mask_function, local_size)
    except IndexError:
        reach, shapes.num_tokens_needed = Reach(is_plain=False), (local_size or 0) + 1
    return shapes.mask(reach, torch.empty(1, 1, q_length, kv_length))


def _read_reach(mask_function: MaskFunction, local_size: int | None) -> Reach:
    """Sliding windows and chunks arrive with the same `local_size`: their second token tells.

    Raises IndexError where the mask looks something up for every token, and the batch has too few.
    """

    def sees(query: int, key: int) -> bool:
        zero = torch.tensor(0)
        return bool(mask_function(zero, zero, torch.tensor(query), torch.tensor(key)))

    if sees(0, 1):
        return Reach(is_plain=False)
    if local_size is None:
        return Reach()
    return Reach(window=local_size) if sees(local_size, 1) else Reach(chunk=local_size)


AttentionInterface.register(PAGED, _attention)
AttentionInterface.register(OBSERVED, _attention)
AttentionMaskInterface.register(OBSERVED, _observed_mask)


def _attend_rows(
    call: AttentionCall, rows: slice, num_new: int, keys: Tensor, values: Tensor, mask: Tensor | None
) -> Tensor:
    """Query heads that share a KV head are rows (decode) or heads (prefill) of one batch entry."""
    query = call.query[rows]
    tokens, heads, key_dim = query.shape
    kv_heads = keys.shape[1]
    folded = query.reshape(tokens, kv_heads, heads // kv_heads, key_dim)
    sinks = None if call.sinks is None else call.sinks.reshape(kv_heads, heads // kv_heads, 1)
    if num_new == 1:
        return _attend(folded, keys, values, mask, call, sinks).flatten(1, 2)
    shape = (-1, heads // kv_heads, -1, -1)
    keys, values = keys.transpose(0, 1).expand(shape), values.transpose(0, 1).expand(shape)
    sinks = None if sinks is None else sinks[..., None]
    attended = _attend(folded.permute(1, 2, 0, 3), keys, values, mask, call, sinks)
    return attended.permute(2, 0, 1, 3).flatten(1, 2)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    call: AttentionCall,
    sinks: Tensor | None,
) -> Tensor:
    """No mask means the causal one over as many queries as keys."""
    keys, values = keys.to(query.dtype), values.to(query.dtype)
    mask = None if mask is None else mask.to(query.dtype)
    if call.softcap is None and sinks is None:
        causal = mask is None
        return scaled_dot_product_attention(query, keys, values, mask, is_causal=causal, scale=call.scale)
    scores = query @ keys.transpose(-1, -2) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores = scores + (_causal_mask(scores) if mask is None else mask)
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return weights[..., : keys.shape[-2]] @ values


def _causal_mask(scores: Tensor) -> Tensor:
    return torch.full_like(scores[0, 0], float("-inf")).triu(1)
