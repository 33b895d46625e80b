"""A model of transformers behind the same face as our own: flat tokens and a plan in, logits out.

What it caches per layer is not read from its configuration, whose fields differ from one family
to the next, but seen in a first pass. Knows nothing about folders, requests or schedulers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from enginewire.torch_engine.layers.attention import KvTensors, Reading
from enginewire.torch_engine.layers.flat_inputs import FlatInputs
from enginewire.torch_engine.models.huggingface.attention import (
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
    def kv_sizes(self) -> tuple[int, ...]:
        """How many numbers each key and each value of a token has, in all layers."""
        return tuple(size for shape in self.shapes for size in shape.sizes)


class GenericModel:
    """A network and what was seen of it. `forward` touches the cache only through its plan.

    `takes_embeddings` once a trial has shown it: some networks need the token ids further on.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        config: GenericConfig,
        body: Module | None = None,
        embedding_size: int | None = None,
    ) -> None:
        """`body` computes states of `embedding_size` for the head; both are None when it was not found."""
        self.config = config
        self.embedding_size = embedding_size
        self._network = network
        self.takes_embeddings = False
        self._body = body
        self.selects_rows = _selects_rows(network)

    @property
    def embedding(self) -> Tensor:
        """The table of the input tokens."""
        return input_table(self._network)

    @property
    def reading(self) -> Reading:
        """Decodes are grouped and padded."""
        return "groups"

    def new_cache(
        self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None
    ) -> LayeredKvTensors:
        """Storage for the keys and values of `num_blocks` × `block_size` tokens."""
        return LayeredKvTensors(self.config.shapes, num_blocks, block_size, self.embedding, dtype)

    def forward(self, inputs: FlatInputs, cache: KvTensors) -> Tensor:
        """Logits [len(sampled), vocab] in float32 for the rows `sampled` of the flat batch."""
        token_ids, positions, sampled = inputs.token_ids[None], inputs.positions[None], inputs.sampled
        rows = {"logits_to_keep": sampled} if self.selects_rows else {}
        read = {"input_ids": token_ids}
        if inputs.embedded is not None:
            read = {"inputs_embeds": look_up(self._network, token_ids)}
            inputs.embedded.put_into(read["inputs_embeds"][0])
        with attending(PagedPass(inputs.plan, cache, self.config.windows)):
            made = self._network(**read, position_ids=positions, use_cache=False, **rows)
        logits: Tensor = made.logits[0]
        return (logits if self.selects_rows and len(logits) == len(sampled) else logits[sampled]).float()

    def forward_and_embed(
        self, inputs: FlatInputs, cache: KvTensors, pooled: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, and the last states [len(pooled), width] of the rows `pooled`."""
        assert self._body is not None, "only asked of a model with an embedding_size"
        with last_states([self._body]) as seen:
            logits = self.forward(inputs, cache)
        return logits, seen[0][1][0, pooled]


@contextmanager
def last_states(bodies: Iterable[Module]) -> Iterator[list[tuple[Module, Tensor]]]:
    """Collects what networks without a head compute, [1, tokens, width], the outermost last."""
    seen: list[tuple[Module, Tensor]] = []

    def keep(body: Module, inputs: object, output: object) -> None:
        states = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
        if isinstance(states, Tensor):
            seen.append((body, states))

    handles = [body.register_forward_hook(keep) for body in bodies]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def input_table(network: PreTrainedModel) -> Tensor:
    """The weights [vocab, width] of the input embedding."""
    return cast(Tensor, network.get_input_embeddings().weight)


def look_up(network: PreTrainedModel, token_ids: Tensor) -> Tensor:
    """The input embeddings [..., width] of token ids."""
    return cast(Tensor, network.get_input_embeddings()(token_ids))


@torch.inference_mode()
def observe(network: PreTrainedModel, max_position: int) -> GenericModel:
    """Run the network to see its layers, and switch it to paged attention. Two tokens are enough, but for
    masks that look every token up.

    Raises UnsupportedAttentionError. Attention in chunks limits the context to one chunk, which is
    like any other attention.
    """
    network.set_attn_implementation(OBSERVED)
    seen, num_tokens = ShapePass(), 2
    try:
        vocab_size, bodies = _look(network, seen, num_tokens)
    except UnsupportedAttentionError:
        num_tokens = seen.num_tokens_needed
        if not 2 < num_tokens <= max_position:
            raise
        seen = ShapePass()
        vocab_size, bodies = _look(network, seen, num_tokens)
    network.set_attn_implementation(PAGED)
    _check_layers(network, seen)
    config = GenericConfig(
        architecture=type(network).__name__,
        vocab_size=vocab_size,
        max_position=min([max_position, *(reach.chunk for reach in seen.reaches if reach.chunk)]),
        shapes=tuple(seen.shapes),
        windows=tuple(reach.window for reach in seen.reaches),
    )
    if config.vocab_size > len(input_table(network)):
        raise UnsupportedAttentionError("it can choose tokens that it cannot read")
    if not bodies:
        return GenericModel(network, config)
    body, states = bodies[-1]
    if states.dim() != 3 or states.shape[:2] != (1, num_tokens):
        return GenericModel(network, config)
    return GenericModel(network, config, body, states.shape[2])


def _look(
    network: PreTrainedModel, seen: ShapePass, num_tokens: int
) -> tuple[int, list[tuple[Module, Tensor]]]:
    """One pass that is observed: the size of the vocabulary, and what networks without a head computed."""
    inner = [part for part in network.modules() if isinstance(part, PreTrainedModel) and part is not network]
    places = torch.arange(num_tokens, device=network.device)[None]
    rows = {"logits_to_keep": places[0, -1:]} if _selects_rows(network) else {}
    with attending(seen), last_states(inner) as bodies:
        tokens = places % len(input_table(network))
        made = network(input_ids=tokens, position_ids=places, use_cache=False, **rows)
    return made.logits.shape[-1], bodies


def _selects_rows(network: PreTrainedModel) -> bool:
    """True if the head can be asked for some tokens only."""
    return "logits_to_keep" in inspect.signature(network.forward).parameters


def _check_layers(network: PreTrainedModel, seen: ShapePass) -> None:
    num_layers, num_seen = network.config.get_text_config().num_hidden_layers, len(seen.shapes)
    if num_seen < num_layers:
        raise UnsupportedAttentionError(
            f"{num_seen} of its {num_layers} layers use the attention interface of transformers;"
            " what the others keep of a text is not known"
        )
