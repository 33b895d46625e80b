"""How much an engine takes where the options leave it open: blocks and their size, context, tokens per step.

Knows nothing about models beyond their sizes.
"""

from __future__ import annotations

import torch

from enginewire.torch_engine.folder.config import ServedConfig
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.layers.rounding import stored_size
from enginewire.torch_engine.layers.varlen_ops import HALF
from enginewire.torch_engine.options import SMALLER_CACHES, TorchEngineOptions
from enginewire.torch_engine.scheduling.scheduler import Scheduler

CPU_CACHE_BYTES = 2 * 2**30
CUDA_CACHE_SHARE = 0.8
"""The rest is for activations and the allocator's slack."""
CPU_STEP_TOKENS = 512
CUDA_STEP_TOKENS = 4096
"""Tokens per step when not given: on a CPU a longer step would make every stream wait too long."""
BLOCK_SIZE = 16
KERNEL_BLOCK_SIZE = 256
"""Flash attention 2 reads no smaller blocks on a GPU."""


def choose_block_size(options: TorchEngineOptions, device: torch.device, dtype: torch.dtype) -> int:
    """In tokens: small ones share more prefixes, large ones are for the kernel of a GPU."""
    has_kernel = device.type == "cuda" and dtype in HALF
    return options.block_size or (KERNEL_BLOCK_SIZE if has_kernel else BLOCK_SIZE)


def choose_kv_dtype(options: TorchEngineOptions, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Of the numbers in the cache of a model of `dtype`; raises ModelLoadError."""
    smaller = SMALLER_CACHES.get(options.kv_cache_dtype)
    chosen = getattr(torch, smaller) if smaller else dtype
    if chosen != dtype and device.type != "cpu":
        raise ModelLoadError(f"kv_cache_dtype {options.kv_cache_dtype} needs a CPU; elsewhere it is auto")
    return chosen


def num_blocks(
    options: TorchEngineOptions,
    config: ServedConfig,
    block_size: int,
    device: torch.device,
    kv_dtype: torch.dtype,
) -> int:
    """As many blocks as fit into the cache memory, but no more than all sequences can use."""
    if options.num_kv_blocks is not None:
        return options.num_kv_blocks
    memory = options.kv_cache_memory_bytes
    if memory is None and device.type == "cuda":
        memory = int(torch.cuda.mem_get_info(device)[0] * CUDA_CACHE_SHARE)
    per_token = sum(stored_size(size, kv_dtype) for size in config.kv_sizes) * kv_dtype.itemsize
    fitting = (memory or CPU_CACHE_BYTES) // (per_token * block_size)
    context = options.max_model_len or config.max_position
    usable = options.max_num_seqs * -(-context // block_size)
    return max(min(fitting, usable), 1)


def choose_context(options: TorchEngineOptions, config: ServedConfig, scheduler: Scheduler) -> int:
    """The model's positions, or fewer where the options or the cache hold less; in tokens."""
    positions, asked = config.max_position, options.max_model_len
    held = positions if scheduler.takes_any_length else scheduler.pool.capacity
    if asked is None:
        return min(positions, held)
    if asked > positions:
        raise ModelLoadError(f"max_model_len {asked} is above the model's {positions} positions")
    if asked > held:
        raise ModelLoadError(f"max_model_len {asked} is above the {held} tokens that the KV cache holds")
    return asked


def default_step_tokens(device: torch.device) -> int:
    """Tokens per step when the options leave that open."""
    return CUDA_STEP_TOKENS if device.type == "cuda" else CPU_STEP_TOKENS
