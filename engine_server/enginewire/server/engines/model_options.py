"""What every engine is told that loads a model and computes it here: one frozen value, named as in vLLM.

Knows nothing about how any of them does it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """`model` is a folder, `builtin:demo` or a hub name; None everywhere means "choose for me".

    `max_model_len` and `max_num_batched_tokens` count tokens, `kv_cache_memory_bytes` is the
    memory for keys and values unless `num_kv_blocks` says how many blocks there are. `seed`
    makes unseeded requests repeatable. `max_loras` is 0 for an engine without adapters.
    """

    model: str = "builtin:demo"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    block_size: int | None = None
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    seed: int | None = None
    enable_prefix_caching: bool = True
    max_loras: int = 0
    max_lora_rank: int = 64
