"""The decoder-only model of the Llama, Mistral, Qwen2 and Qwen3 families: weights and forward.

Projections that read the same input are fused (q, k, v; gate, up). Knows nothing about requests,
schedulers or sampling: flat tokens and an attention plan in, logits out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from engine_server.torch_engine.attention import AttentionPlan, KvTensors, attend
from engine_server.torch_engine.checkpoint import Checkpoint
from engine_server.torch_engine.model_config import ModelConfig
from engine_server.torch_engine.rotary import Rotary, rotate


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection y = x Wᵀ + b."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, value: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return linear(value, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm over the last dimension, computed in float32."""

    weight: Tensor
    eps: float

    def __call__(self, value: Tensor) -> Tensor:
        """Same shape and dtype as `value`."""
        wide = value.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(value.dtype)


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
    head: Tensor
    rotary: Rotary

    def forward(
        self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan, cache: KvTensors, sampled: Tensor
    ) -> Tensor:
        """Logits [len(sampled), vocab] in float32 for the rows `sampled` of the flat batch."""
        hidden = embedding(token_ids, self.embedding)
        cos, sin = self.rotary(positions, hidden.dtype)
        for layer in self.layers:
            hidden = hidden + self._attention(layer, layer.input_norm(hidden), cos, sin, plan, cache)
            hidden = hidden + _mlp(layer, layer.mlp_norm(hidden))
        return linear(self.norm(hidden[sampled]), self.head).float()

    def _attention(
        self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan, cache: KvTensors
    ) -> Tensor:
        heads, kv_heads, head_dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        projected = layer.qkv(hidden).view(len(hidden), heads + 2 * kv_heads, head_dim)
        query, keys, values = torch.split(projected, [heads, kv_heads, kv_heads], dim=1)
        if layer.query_norm and layer.key_norm:
            query, keys = layer.query_norm(query), layer.key_norm(keys)
        query, keys = rotate(query, cos, sin), rotate(keys, cos, sin)
        cache.write(layer.index, plan.slots, keys, values)
        attended = torch.empty_like(query)
        for group in plan.groups:
            attended[group.rows] = attend(query[group.rows], cache, layer.index, group, layer.window)
        return layer.output(attended.flatten(1))


def _mlp(layer: Layer, hidden: Tensor) -> Tensor:
    gate, up = layer.gate_up(hidden).chunk(2, dim=-1)
    return layer.down(silu(gate) * up)


def build_model(
    config: ModelConfig, weights: Checkpoint, device: torch.device, progress: Callable[[float], None]
) -> Model:
    """Read every weight; `progress` gets the fraction done. Raises ModelLoadError."""
    table = weights.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers: list[Layer] = []
    for index in range(config.num_layers):
        progress(index / config.num_layers)
        layers.append(_build_layer(config, weights, index))
    # Some files say tied and still carry a head, some the reverse: the flag decides, as in training.
    tied = config.tied_embeddings
    head = table if tied else weights.tensor("lm_head.weight", config.vocab_size, config.hidden_size)
    norm = Norm(weights.tensor("model.norm.weight", config.hidden_size), config.norm_eps)
    return Model(config, table, layers, norm, head, Rotary(config.rope, config.head_dim, device))


def _build_layer(config: ModelConfig, weights: Checkpoint, index: int) -> Layer:
    prefix = f"model.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def project(block: str, parts: dict[str, int], inputs: int, bias: bool) -> Linear:
        names, sizes = [f"{prefix}{block}.{part}_proj" for part in parts], list(parts.values())
        weight = weights.stack([f"{name}.weight" for name in names], sizes, inputs)
        return Linear(weight, weights.stack([f"{name}.bias" for name in names], sizes) if bias else None)

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
