"""What loading gives, and the first request that every engine answers, its own.

Knows nothing about model folders or about what loads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from enginewire.server.engines.interface import GenerateContext, Tokenizer
from enginewire.server.handoff.file_format import KvLayout
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.folder.config import ServedConfig
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.folder.generation_config import GenerationDefaults
from enginewire.torch_engine.guided.backends import GuidedBackends
from enginewire.torch_engine.lora.projections import AdaptedProjections
from enginewire.torch_engine.requests.params import SamplingParams, StopRules
from enginewire.torch_engine.requests.pooling import Embedding, Pooling
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.requests.thinking import ThinkingTokens

WARM_UP_TOKENS = 64

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """Everything that is known once the model is warm.

    `slowest_step` is an estimate in seconds, `medium` where the KV cache is: "cpu" or "gpu". `like` has the
    dtype and the device of the weights. `kv_layout` is there when the engine has to hand KV over. Without an
    `embedding_width` the model reads nothing but token ids.
    """

    core: EngineCore
    config: ServedConfig
    defaults: GenerationDefaults
    tokenizer: Tokenizer | None
    context_length: int
    slowest_step: float
    medium: str
    like: torch.Tensor
    grammars: GuidedBackends | None = None
    adapted: AdaptedProjections | None = None
    embedding: Embedding | None = None
    kv_layout: KvLayout | None = None
    thinking: ThinkingTokens | None = None
    embedding_width: int | None = None


def medium_of(device: torch.device) -> str:
    """Where the cache is, in the words of KV events."""
    return "gpu" if device.type == "cuda" else "cpu"


def warm_up(
    core: EngineCore, context_length: int, num_tokens: int = WARM_UP_TOKENS, pooling: Pooling | None = None
) -> float:
    """Run one real request of up to `num_tokens` to its end; returns the estimated seconds of a full step."""
    capacity = core.scheduler.pool.capacity
    length = max(min(num_tokens, context_length, capacity) - 2, 1)
    stop = StopRules(max_total_tokens=min(length + 2, capacity + 1))
    sampling = SamplingParams(seed=0, top_k=2)
    context = GenerateContext("warm-up")
    request = Request(context, [0] * length, sampling, stop, urgency=(0, 0.0, 0), pooling=pooling)
    request.sequences = [Sequence(request, 0)]
    core.add(request)
    started = time.monotonic()
    while core.has_work:
        core.step()
        if core.take_outputs().failures:
            made = "logits" if pooling is None else "vectors"
            raise ModelLoadError(f"the model computes no usable {made} on this device and dtype")
    core.reset_counters()
    return (time.monotonic() - started) / length * core.scheduler.max_num_batched_tokens
