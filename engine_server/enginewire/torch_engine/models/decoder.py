"""The decoder-only model of the Llama, Mistral, Qwen2 and Qwen3 families: weights and forward.

Projections that read the same input are fused (q, k, v; gate, up). Knows nothing about requests,
schedulers or sampling: flat tokens and an attention plan in, logits out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from enginewire.torch_engine.folder.config import ModelConfig
from enginewire.torch_engine.folder.weights import Checkpoint
from enginewire.torch_engine.layers.attention import KvTensors, Reading
from enginewire.torch_engine.layers.flat_inputs import FlatInputs
from enginewire.torch_engine.layers.linear import Linear, MakeLinear
from enginewire.torch_engine.layers.ops import LayerOps
from enginewire.torch_engine.layers.rotary import Rotary
from enginewire.torch_engine.lora.projections import AdaptedLinear, AdaptedProjections


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What computes: `project` makes the projections of the layers, `head` the one that gives logits."""

    ops: LayerOps
    project: MakeLinear
    head: MakeLinear


@dataclass(frozen=True, slots=True)
class Norm:
    """The weight and epsilon of a root mean square norm."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. `window` is its sliding window in tokens, None for full attention."""

    index: int
    window: int | None
    input_norm: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Model:
    """All weights. `forward` touches the cache only through its plan."""

    config: ModelConfig
    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: Linear
    rotary: Rotary
    ops: LayerOps

    @property
    def embedding_size(self) -> int:
        """Width of the last states."""
        return self.config.hidden_size

    @property
    def reading(self) -> Reading:
        """What plans are made for."""
        return self.ops.reading

    def forward(self, inputs: FlatInputs, cache: KvTensors) -> Tensor:
        """Logits [len(sampled), vocab] in float32 for the rows `sampled` of the flat batch."""
        return self._logits(self._hidden(inputs, cache)[inputs.sampled])

    def forward_and_embed(
        self, inputs: FlatInputs, cache: KvTensors, pooled: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, and the last states [len(pooled), width] of the rows `pooled`."""
        hidden = self._hidden(inputs, cache)
        return self._logits(hidden[inputs.sampled]), self._norm(self.norm, hidden[pooled])

    def _hidden(self, inputs: FlatInputs, cache: KvTensors) -> Tensor:
        """What leaves the last layer, before the last norm."""
        hidden = embedding(inputs.token_ids, self.embedding)
        if inputs.embedded is not None:
            inputs.embedded.put_into(hidden)
        rotation = self.rotary(inputs.positions, hidden.dtype)
        for layer in self.layers:
            heads = self._heads(layer, self._norm(layer.input_norm, hidden))
            attended = self.ops.attend(heads, rotation, inputs.plan, cache, layer.index, layer.window)
            hidden = layer.output.plus(attended, hidden)
            gated = self.ops.gate(layer.gate_up(self._norm(layer.mlp_norm, hidden)))
            hidden = layer.down.plus(gated, hidden)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.head(self._norm(self.norm, hidden)).float()

    def _heads(self, layer: Layer, hidden: Tensor) -> Tensor:
        """Query, key and value heads [tokens, num_heads + 2 × num_kv_heads, head_dim], not rotated yet."""
        num_heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        heads = layer.qkv(hidden).view(len(hidden), num_heads + 2 * kv_heads, self.config.head_dim)
        if layer.query_norm and layer.key_norm:
            query, keys = heads[:, :num_heads], heads[:, num_heads : num_heads + kv_heads]
            query.copy_(self._norm(layer.query_norm, query))
            keys.copy_(self._norm(layer.key_norm, keys))
        return heads

    def _norm(self, norm: Norm, value: Tensor) -> Tensor:
        return self.ops.rms_norm(value, norm.weight, norm.eps)


def build_model(
    config: ModelConfig,
    weights: Checkpoint,
    device: torch.device,
    arithmetic: Arithmetic,
    progress: Callable[[float], None],
    adapted: AdaptedProjections | None = None,
) -> Model:
    """Read every weight; `progress` gets the fraction done. Raises ModelLoadError.

    All projections of the layers become parts of `adapted`, if given.
    """
    table = weights.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers: list[Layer] = []
    for index in range(config.num_layers):
        progress(index / config.num_layers)
        layers.append(_build_layer(config, weights, index, arithmetic.project, adapted))
    # Some files say tied and still carry a head, some the reverse: the flag decides, as in training.
    tied = config.tied_embeddings
    head = table if tied else weights.tensor("lm_head.weight", config.vocab_size, config.hidden_size)
    norm = Norm(weights.tensor("model.norm.weight", config.hidden_size), config.norm_eps)
    rotary = Rotary(config.rope, config.head_dim, device)
    return Model(config, table, layers, norm, arithmetic.head(head, None), rotary, arithmetic.ops)


def _build_layer(
    config: ModelConfig,
    weights: Checkpoint,
    index: int,
    make: MakeLinear,
    adapted: AdaptedProjections | None,
) -> Layer:
    prefix = f"model.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def project(block: str, parts: dict[str, int], inputs: int, bias: bool) -> Linear:
        names, sizes = [f"{prefix}{block}.{part}_proj" for part in parts], list(parts.values())
        weight = weights.stack([f"{name}.weight" for name in names], sizes, inputs)
        linear = make(weight, weights.stack([f"{name}.bias" for name in names], sizes) if bias else None)
        if adapted is None:
            return linear
        return AdaptedLinear(linear, adapted, adapted.add(names, sizes, inputs))

    def norm(name: str, size: int) -> Norm:
        return Norm(weights.tensor(f"{prefix}{name}.weight", size), config.norm_eps)

    return Layer(
        index=index,
        window=config.windows[index],
        input_norm=norm("input_layernorm", hidden),
        qkv=project("self_attn", {"q": query, "k": key, "v": key}, hidden, config.qkv_bias),
        query_norm=norm("self_attn.q_norm", config.head_dim) if config.qk_norm else None,
        key_norm=norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None,
        output=project("self_attn", {"o": hidden}, query, config.output_bias),
        mlp_norm=norm("post_attention_layernorm", hidden),
        gate_up=project("mlp", {"gate": inner, "up": inner}, hidden, config.mlp_bias),
        down=project("mlp", {"down": hidden}, inner, config.mlp_bias),
    )
