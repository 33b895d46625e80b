"""A trial of positions: what a model of transformers does late in a text, seen without computing a long one.

Some mechanisms begin at a position: scores that are scaled from the 8192nd token on, tables that end. The
model runs over a few tokens twice. Once as transformers means it, with a cache that says how many tokens
came before and has forgotten them; once as we run it, with positions and without a cache. Both see the same
tokens in the same shapes, so they differ only where a position enters the model by another way than ours.
The cache also tells what a model keeps beside keys and values.

Knows nothing about folders, requests or blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from enginewire.torch_engine.models.huggingface.attention import (
    PlainPass,
    UnsupportedAttentionError,
    attending,
)
from enginewire.torch_engine.models.huggingface.model import GenericModel
from enginewire.torch_engine.models.huggingface.trial import distances

TOLERANCE = 1e-5
"""Largest relative distance of logits that is none: on a CPU both ways give the same bits, in every dtype."""
NOISE = 4
"""Some kernels of a GPU add in any order: what repeating changes, times this, is no difference either."""
NUM_REPEATS = 3
LENGTH = 8
"""Tokens of a probe, half of them before the position it is about."""
FIRST_POWER = 32
"""From here on, every power of two is probed."""


class _ForgetfulLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers is not typed here
    """Says that tokens came before, and has nothing of them."""

    def __init__(self, forgotten: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._forgotten = forgotten

    def get_seq_length(self) -> int:
        return self._forgotten + int(super().get_seq_length())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(super().get_seq_length()) + query_length, self._forgotten

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Hands them back as they came: of a copy with other strides the sums may be rounded otherwise."""
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states

    def __getattr__(self, name: str) -> NoReturn:
        """Only called for what a layer of keys and values does not have."""
        _refuse_state(name)


class _ForgetfulCache(Cache):
    """Refuses to keep anything but keys and values."""

    def __init__(self, num_layers: int, forgotten: int) -> None:
        super().__init__(layers=[_ForgetfulLayer(forgotten) for _ in range(num_layers)])

    def update_conv_state(self, *_: object, **__: object) -> NoReturn:
        _refuse_state("update_conv_state")

    def update_recurrent_state(self, *_: object, **__: object) -> NoReturn:
        _refuse_state("update_recurrent_state")

    def has_previous_state(self, *_: object, **__: object) -> NoReturn:
        _refuse_state("has_previous_state")


def _refuse_state(name: str) -> NoReturn:
    raise UnsupportedAttentionError(f"it keeps more than keys and values: it asks its cache for {name}")


@torch.inference_mode()
def context_of_positions(network: PreTrainedModel, model: GenericModel) -> int:
    """Up to where the model counts positions as we do, in tokens.

    That is behind the last position tried before the first that differs. Raises
    UnsupportedAttentionError where that leaves next to nothing: the model takes its positions from
    elsewhere, such as the rows of a batch.
    """
    context, longest = 0, model.config.max_position
    for start in _starts(network, longest):
        agreeing = _num_agreeing(network, model, range(start, min(start + LENGTH, longest)))
        context = start + agreeing if agreeing else context
        if agreeing < min(LENGTH, longest):
            break
    else:
        return longest
    if context < FIRST_POWER:
        raise UnsupportedAttentionError("it counts positions in a way of its own")
    return context


def _starts(network: PreTrainedModel, longest: int) -> list[int]:
    """Where probes begin: around powers of two and every number of the configuration, and at both ends."""
    powers = (1 << power for power in range(FIRST_POWER.bit_length() - 1, longest.bit_length()))
    interesting = {0, longest, *powers, *_numbers(network.config.get_text_config().to_dict())}
    last = max(longest - LENGTH, 0)
    return sorted({min(max(number - LENGTH // 2, 0), last) for number in interesting if number <= longest})


def _numbers(values: object) -> Iterator[int]:
    """The whole numbers in a configuration: any of them may be where something begins."""
    if isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _numbers(value)
    elif isinstance(values, int | float) and not isinstance(values, bool) and values >= FIRST_POWER:
        yield from [int(values)] if float(values).is_integer() else []


def _num_agreeing(network: PreTrainedModel, model: GenericModel, positions: range) -> int:
    """How many tokens have the same logits both ways before the first that has not."""
    ids = torch.arange(len(positions), device=network.device)[None] * 7919 + 11
    read = {"input_ids": ids % model.config.vocab_size}
    given = torch.arange(positions.start, positions.stop, device=network.device)[None]

    def ours() -> Tensor:
        logits: Tensor = network(**read, position_ids=given, use_cache=False).logits[0].float()
        return logits

    with attending(PlainPass()):
        cache = _ForgetfulCache(len(model.config.shapes), positions.start)
        wanted: Tensor = network(**read, past_key_values=cache, use_cache=True).logits[0].float()
        found = ours()
        distance = distances(found, wanted)
        if (distance > TOLERANCE).any():
            noise = torch.stack([distances(ours(), found).max() for _ in range(NUM_REPEATS)]).max()
            distance = distance - NOISE * noise
    differing = (distance > TOLERANCE).nonzero()
    return int(differing[0]) if len(differing) else len(positions)
