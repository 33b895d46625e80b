"""A model of transformers behind the same face as our own: flat tokens and a plan in, logits out.

What it caches per layer is not read from its configuration, whose fields differ from one family
to the next, but seen in a first pass. Knows nothing about folders, requests or schedulers.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine_server.torch_engine.attention import AttentionPlan, KvTensors
from engine_server.torch_engine.generic_attention import (
    OBSERVED,
    PAGED,
    KvShape,
    LayeredKvTensors,
    PagedPass,
    ShapePass,
    UnsupportedAttentionError,
    attending,
)


@dataclass(frozen=True, slots=True)
class GenericConfig:
    """`shapes` and `windows` have one entry per attention layer; windows and positions in tokens."""

    architecture: str
    vocab_size: int
    max_position: int
    shapes: tuple[KvShape, ...]
    windows: tuple[int | None, ...]

    @property
    def kv_elements(self) -> int:
        """Numbers that all layers together cache per token."""
        return sum(shape.elements for shape in self.shapes)


class GenericModel:
    """A network and what was seen of it. `forward` touches the cache only through its plan."""

    def __init__(self, network: PreTrainedModel, config: GenericConfig) -> None:
        self.config = config
        self._network = network
        self._selects_rows = "logits_to_keep" in inspect.signature(network.forward).parameters

    @property
    def embedding(self) -> Tensor:
        """The table of the input tokens."""
        return input_table(self._network)

    @property
    def reads_ragged_rows(self) -> bool:
        """False: decodes are grouped and padded."""
        return False

    def new_cache(self, num_blocks: int, block_size: int) -> LayeredKvTensors:
        """Storage for the keys and values of `num_blocks` × `block_size` tokens."""
        return LayeredKvTensors(self.config.shapes, num_blocks, block_size, like=self.embedding)

    def forward(
        self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan, cache: KvTensors, sampled: Tensor
    ) -> Tensor:
        """Logits [len(sampled), vocab] in float32 for the rows `sampled` of the flat batch."""
        rows = {"logits_to_keep": sampled} if self._selects_rows else {}
        with attending(PagedPass(plan, cache, self.config.windows)):
            made = self._network(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **rows
            )
        logits: Tensor = made.logits[0]
        return (logits if len(logits) == len(sampled) else logits[sampled]).float()


def input_table(network: PreTrainedModel) -> Tensor:
    """The weights [vocab, width] of the input embedding."""
    return cast(Tensor, network.get_input_embeddings().weight)


@torch.inference_mode()
def observe(network: PreTrainedModel, max_position: int) -> GenericModel:
    """Run the network once to see its layers, and switch it to paged attention.

    Raises UnsupportedAttentionError. Attention in chunks limits the context to one chunk, which is
    like any other attention.
    """
    network.set_attn_implementation(OBSERVED)
    seen = ShapePass()
    tokens = torch.arange(2, device=network.device)[None]
    with attending(seen):
        made = network(input_ids=tokens, position_ids=tokens, use_cache=False)
    network.set_attn_implementation(PAGED)
    _check_layers(network, seen)
    config = GenericConfig(
        architecture=type(network).__name__,
        vocab_size=made.logits.shape[-1],
        max_position=min([max_position, *(reach.chunk for reach in seen.reaches if reach.chunk)]),
        shapes=tuple(seen.shapes),
        windows=tuple(reach.window for reach in seen.reaches),
    )
    if config.vocab_size > len(input_table(network)):
        raise UnsupportedAttentionError("it can choose tokens that it cannot read")
    return GenericModel(network, config)


def _check_layers(network: PreTrainedModel, seen: ShapePass) -> None:
    num_layers, num_seen = network.config.get_text_config().num_hidden_layers, len(seen.shapes)
    if num_seen < num_layers:
        raise UnsupportedAttentionError(
            f"{num_seen} of its {num_layers} layers use the attention interface of transformers"
        )
