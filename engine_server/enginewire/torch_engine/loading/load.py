"""From options to a warm engine core. Runs on the step thread, the only one that enters torch.

Chooses device, dtype and cache size where the options leave them open. Knows nothing about event
loops or protobuf.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence as Seq
from typing import TYPE_CHECKING

import torch

from enginewire.server.engines.interface import Tokenizer
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.folder.config import ServedConfig, is_native, read_dtype, read_model_config
from enginewire.torch_engine.folder.digest import model_digest
from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError
from enginewire.torch_engine.folder.generation_config import GenerationDefaults, read_generation_defaults
from enginewire.torch_engine.folder.source import open_model
from enginewire.torch_engine.folder.weights import open_checkpoint
from enginewire.torch_engine.guided.backends import GuidedBackends, open_backends
from enginewire.torch_engine.guided.vocabulary import read_vocabulary
from enginewire.torch_engine.layers.attention import KvTensors
from enginewire.torch_engine.layers.device import is_far
from enginewire.torch_engine.loading.capacity import (
    choose_block_size,
    choose_context,
    choose_kv_dtype,
    default_step_tokens,
    num_blocks,
)
from enginewire.torch_engine.loading.drafting import start_drafting
from enginewire.torch_engine.loading.graphs import record_decodes, record_fixed_shape
from enginewire.torch_engine.loading.kernel_choice import choose_arithmetic
from enginewire.torch_engine.loading.pooling import choose_pooling
from enginewire.torch_engine.loading.processors import limit_kernel_caches, num_cores
from enginewire.torch_engine.loading.warm_up import (
    WARM_UP_TOKENS,
    LoadedEngine,
    Progress,
    medium_of,
    warm_up,
)
from enginewire.torch_engine.lora.projections import AdaptedProjections
from enginewire.torch_engine.models.decoder import Model, build_model
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.pooling import Embedding
from enginewire.torch_engine.requests.thinking import ThinkingTokens, find_thinking_tokens
from enginewire.torch_engine.runner.kv_copies import kv_layout
from enginewire.torch_engine.runner.model_runner import ModelRunner
from enginewire.torch_engine.scheduling.admission_rules import AdmissionRules
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from enginewire.torch_engine.models.huggingface.model import GenericModel

log = logging.getLogger(__name__)


def load_engine(options: TorchEngineOptions, progress: Progress) -> LoadedEngine:
    """Load, allocate and warm up; raises ModelLoadError. `progress` gets a phase and 0 to 1."""
    torch.set_num_threads(options.num_threads or num_cores())
    limit_kernel_caches()
    progress("load", 0.0)
    folder = open_model(options.model)
    device = choose_device(options)
    dtype = choose_dtype(options, read_dtype(folder), device)
    log.info("device: %s, %s", shown_device(device), str(dtype).removeprefix("torch."))
    kv_dtype = choose_kv_dtype(options, device, dtype)
    if not is_native(folder):
        # Importing transformers takes seconds, which the models of our own code need not wait for.
        from enginewire.torch_engine.loading.encoder import load_encoder_engine
        from enginewire.torch_engine.loading.encoder_model import is_encoder

        if options.batch_invariant:
            raise ModelLoadError("batch_invariant is not for models of transformers")
        if is_encoder(folder):
            return load_encoder_engine(options, folder, dtype, device, progress)
    adapted = AdaptedProjections() if options.max_loras else None
    model = load_model(options, folder, dtype, device, lambda done: progress("load", done), adapted)
    config = model.config
    block_size = choose_block_size(options, device, dtype)
    pool = BlockPool(num_blocks(options, config, block_size, device, kv_dtype), block_size)
    scheduler = _scheduler(options, pool, device, config)
    context_length = choose_context(options, config, scheduler)
    cache = _new_cache(model, pool, kv_dtype)
    progress("warm-up", 0.0)
    fixed_shape = record_fixed_shape(options, model, cache, context_length)
    graphs = None if fixed_shape else record_decodes(options, model, cache, context_length)
    runner = ModelRunner(model, cache, adapted, graphs, fixed_shape)
    # What is drafted, and how much of it was right, depends on the tokens of the step before.
    runs_ahead = options.async_scheduling and is_far(device) and options.speculative_config is None
    core = EngineCore(scheduler, runner, runs_ahead=runs_ahead)
    # On a GPU a whole step: what memory it takes is there before the first request, or missing before.
    warm_up_tokens = scheduler.max_num_batched_tokens if is_far(device) else WARM_UP_TOKENS
    slowest_step = warm_up(core, context_length, warm_up_tokens)
    if options.speculative_config:
        start_drafting(core, runner, options.speculative_config, device)
    progress("warm-up", 1.0)
    defaults = read_generation_defaults(folder, config.vocab_size)
    tokenizer = folder.tokenizer()
    grammars = _grammars(options, tokenizer, config, defaults)
    layout = None
    if options.transfer:
        layout = kv_layout(cache, f"{model_digest(folder)} {dtype} {options.quantization}")
    return LoadedEngine(
        core=core,
        config=config,
        defaults=defaults,
        tokenizer=tokenizer,
        context_length=context_length,
        slowest_step=slowest_step,
        medium=medium_of(device),
        like=model.embedding,
        grammars=grammars,
        adapted=adapted,
        # A graph of fixed shape knows token ids and logits only.
        embedding=None if fixed_shape else _embedding(options, folder, model),
        kv_layout=layout,
        thinking=_thinking(options, tokenizer, config),
        embedding_width=None if fixed_shape else _embedding_width(model),
    )


def load_model(
    options: TorchEngineOptions,
    folder: ModelFolder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
    adapted: AdaptedProjections | None = None,
) -> Model | GenericModel:
    """By our own code where it covers the architecture, by transformers everywhere else.

    What adapters can change of the model is added to `adapted`.
    """
    if not is_native(folder):
        if options.quantization != "none":
            raise ModelLoadError(f"quantization {options.quantization} is not for models of transformers")
        from enginewire.torch_engine.models.huggingface.loading import load_generic_model

        return load_generic_model(folder, dtype, device, progress, adapted)
    config = read_model_config(folder)
    with open_checkpoint(folder, dtype, device) as weights:
        arithmetic = choose_arithmetic(options, config, device, dtype)
        return build_model(config, weights, device, arithmetic, progress, adapted)


def choose_device(options: TorchEngineOptions) -> torch.device:
    """`auto` takes CUDA when there is one; raises ModelLoadError when CUDA is asked for in vain."""
    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise ModelLoadError("device cuda: no CUDA device is available")
    return torch.device("cuda" if available and options.device != "cpu" else "cpu")


def shown_device(device: torch.device) -> str:
    """A device for people: the name of a GPU, or how many threads a CPU gives."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"{device}, {torch.get_num_threads()} threads"


def choose_dtype(options: TorchEngineOptions, stored: str, device: torch.device) -> torch.dtype:
    """`auto` is the dtype `stored` in the folder, except float16 on a CPU, where float32 is faster."""
    name = stored if options.dtype == "auto" else options.dtype
    if options.dtype == "auto" and name == "float16" and device.type == "cpu":
        name = "float32"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), "the names were checked by options and config"
    return dtype


def _scheduler(
    options: TorchEngineOptions, pool: BlockPool, device: torch.device, config: ServedConfig
) -> Scheduler:
    step_tokens = options.max_num_batched_tokens or max(default_step_tokens(device), options.max_num_seqs)
    rules = AdmissionRules(
        max_batch_prefill_tokens=options.max_batch_prefill_tokens,
        max_mixed_prefill_tokens=options.max_mixed_prefill_tokens or -(-step_tokens // 2),
        max_batch_total_tokens=options.max_batch_total_tokens,
        waiting_served_ratio=options.waiting_served_ratio,
        max_waiting_tokens=options.max_waiting_tokens,
    )
    return Scheduler(pool, options.max_num_seqs, step_tokens, rules, longest_window(config.windows))


def longest_window(windows: Seq[int | None]) -> int | None:
    """How far back any layer looks, in tokens; None when one of them sees everything."""
    found = [window for window in windows if window is not None]
    return max(found) if found and len(found) == len(windows) else None


def _new_cache(model: Model | GenericModel, pool: BlockPool, dtype: torch.dtype) -> KvTensors:
    try:
        return _allocate_cache(model, pool, dtype)
    except RuntimeError as error:  # torch's word for too little memory
        size = f"{pool.num_blocks} KV blocks of {pool.block_size} tokens"
        reason = str(error).partition("\n")[0]
        raise ModelLoadError(f"there is no memory for {size}: {reason}") from error


def _allocate_cache(model: Model | GenericModel, pool: BlockPool, dtype: torch.dtype) -> KvTensors:
    if not isinstance(model, Model):
        return model.new_cache(pool.num_blocks, pool.block_size, dtype)
    config = model.config
    # Graphs leave what nobody asked for in a block beyond those of the pool.
    num_blocks = pool.num_blocks + (model.reading == "varlen")
    shape = (num_blocks, pool.block_size, config.num_kv_heads, config.head_dim)
    return KvTensors(config.num_layers, shape, model.embedding, dtype)


def _embedding(
    options: TorchEngineOptions, folder: ModelFolder, model: Model | GenericModel
) -> Embedding | None:
    """None for a model whose states cannot be seen, and for sums whose order depends on the batch."""
    if model.embedding_size is None:
        return None
    pooling = choose_pooling(options, folder, is_encoder=False)
    if options.batch_invariant and pooling.kind == "mean":
        return None
    return Embedding(model.embedding_size, pooling)


def _embedding_width(model: Model | GenericModel) -> int | None:
    return model.embedding.shape[1] if isinstance(model, Model) or model.takes_embeddings else None


def _thinking(
    options: TorchEngineOptions, tokenizer: Tokenizer | None, config: ServedConfig
) -> ThinkingTokens | None:
    if not options.thinking_token_ids:
        return find_thinking_tokens(tokenizer, config.vocab_size)
    opening, closing = options.thinking_token_ids
    if max(opening, closing) >= config.vocab_size:
        raise ModelLoadError(f"thinking_token_ids: must be below the vocabulary size {config.vocab_size}")
    return ThinkingTokens(opening, closing)


def _grammars(
    options: TorchEngineOptions,
    tokenizer: Tokenizer | None,
    config: ServedConfig,
    defaults: GenerationDefaults,
) -> GuidedBackends | None:
    """None without a grammar library, or with a tokenizer whose tokens cannot be read as bytes."""
    if tokenizer is None:
        return None
    vocabulary = read_vocabulary(tokenizer, config.vocab_size, defaults.eos_token_ids)
    if vocabulary is None:
        log.warning("no guided decoding: the tokens of this tokenizer cannot be read as bytes")
        return None
    return open_backends(
        vocabulary,
        options.guided_backend,
        disable_any_whitespace=options.guided_disable_any_whitespace,
    )
