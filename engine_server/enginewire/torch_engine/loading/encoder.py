"""An engine that only embeds: an encoder, and a core that never cuts an input.

Knows nothing about event loops or protobuf.
"""

from __future__ import annotations

import torch

from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError
from enginewire.torch_engine.folder.generation_config import GenerationDefaults
from enginewire.torch_engine.loading.capacity import default_step_tokens
from enginewire.torch_engine.loading.encoder_model import load_encoder
from enginewire.torch_engine.loading.pooling import choose_pooling, longest_input
from enginewire.torch_engine.loading.warm_up import LoadedEngine, Progress, medium_of, warm_up
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.pooling import Embedding
from enginewire.torch_engine.runner.encoder import Encoder
from enginewire.torch_engine.scheduling.admission_rules import AdmissionRules
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.scheduler import Scheduler


def load_encoder_engine(
    options: TorchEngineOptions,
    folder: ModelFolder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> LoadedEngine:
    """An engine that only embeds; raises ModelLoadError."""
    if options.quantization != "none":
        raise ModelLoadError(f"quantization {options.quantization} is not for models of transformers")
    if options.kv_cache_dtype != "auto":
        raise ModelLoadError("kv_cache_dtype is not for models that only embed: they have no KV cache")
    if options.role != "aggregated":
        raise ModelLoadError(f"role {options.role} is not for models that only embed")
    encoder = load_encoder(folder, dtype, device, lambda done: progress("load", done))
    context_length = choose_input_length(options, folder, encoder.config.max_position)
    step_tokens = options.max_num_batched_tokens or default_step_tokens(device)
    core = encoder_core(encoder, context_length, options.max_num_seqs, step_tokens)
    embedding = Embedding(
        encoder.config.embedding_size, choose_pooling(options, folder, is_encoder=True), is_all=True
    )
    progress("warm-up", 0.0)
    slowest_step = warm_up(core, context_length, pooling=embedding.pooling)
    progress("warm-up", 1.0)
    return LoadedEngine(
        core=core,
        config=encoder.config,
        defaults=GenerationDefaults(),
        tokenizer=folder.tokenizer(),
        context_length=context_length,
        slowest_step=slowest_step,
        medium=medium_of(device),
        like=torch.empty(0, dtype=dtype, device=device),
        embedding=embedding,
    )


def choose_input_length(options: TorchEngineOptions, folder: ModelFolder, max_position: int) -> int:
    """Tokens of the longest input of an encoder: as asked for, as its folder says, or its positions."""
    if options.max_model_len is None:
        return min(max_position, longest_input(folder) or max_position)
    if options.max_model_len > max_position:
        raise ModelLoadError(
            f"max_model_len {options.max_model_len} is above the model's {max_position} positions"
        )
    return options.max_model_len


def encoder_core(encoder: Encoder, context_length: int, max_num_seqs: int, step_tokens: int) -> EngineCore:
    """A core whose scheduler never cuts an input. A block stands for a whole input: nothing is cached."""
    pool = BlockPool(2 * max_num_seqs, context_length)
    rules = AdmissionRules(whole_prompts=True)
    scheduler = Scheduler(pool, max_num_seqs, max(step_tokens, context_length, max_num_seqs), rules)
    return EngineCore(scheduler, encoder)
