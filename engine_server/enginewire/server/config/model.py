"""What the engine server serves and how: the model, its batches and memory, adapters.

Names follow the flags people know from vLLM; the contract's own names are in the `contract=` notes.
Knows nothing about engines: an option that only one engine understands says so.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from enginewire.options import option
from enginewire.server.config.our_engines import NAMES, OurEngine
from enginewire.server.handoff.options import Role

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDType = Literal["auto", "bfloat16", "int8_per_token_head"]
Quantization = Literal["none", "int8", "int4"]
Pooling = Literal["auto", "last", "mean", "cls"]
GuidedBackend = Literal["auto", "xgrammar", "llguidance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelOptions:
    """Options of whatever serves a model."""

    model: str = option(
        "builtin:demo",
        "model to serve: a folder, a GGUF file, a hub name such as owner/model, or builtin:demo",
        aliases=("--model-path", "--model-id"),
        positional=True,
        heading="model",
        contract="EngineConfig.model",
    )
    served_model_name: tuple[str, ...] = option(
        (),
        "name that clients use for the model; the first is shown, the others are aliases",
        contract="EngineConfig.served_model_name",
    )
    engine: str = option(OurEngine.TORCH.value, f"engine to run: {NAMES}, or module:Class of your own")
    role: Role = option(
        "aggregated",
        "part in disaggregated serving: prefill computes prompts and hands them over, decode goes on",
        contract="EngineConfig.role",
    )
    device: Device = option("auto", "where the model runs")
    dtype: DType = option("auto", "type of the weights, and of what is computed")
    quantization: Quantization = option(
        "none",
        "form of the weights while serving; int8 is faster and changes answers, int4 more so (CPU only)",
    )
    compile_kernels: bool = option(
        True, "run small kernels that the machine's C++ compiler, on a GPU Triton, builds once, if it can"
    )
    batch_invariant: bool = option(
        False,
        "outputs do not depend on the batch, bit for bit; slower",
        contract="Capabilities.batch_invariant",
    )
    async_scheduling: bool = option(
        True, "give the GPU its next step before the tokens of this one are read; changes nothing on a CPU"
    )
    enforce_eager: bool = option(False, "run every step without CUDA graphs, which is slower (GPU only)")
    seed: int | None = option(None, "makes unseeded requests repeatable", at_least=0, at_most=2**64 - 1)
    thinking_token_ids: tuple[int, ...] = option(
        (),
        "the two ids that open and close thinking; <think> and </think> of the tokenizer when not set",
        at_least=0,
        contract="Capabilities.max_thinking_tokens",
    )

    guided_backend: GuidedBackend = option(
        "auto",
        "grammar library of requests that name none; auto takes xgrammar, else llguidance",
        contract="GuidedDecoding.backend",
    )
    guided_disable_any_whitespace: bool = option(
        False,
        "JSON of a grammar has a blank at most between its tokens, unless a request says otherwise",
        contract="GuidedDecoding.whitespace_pattern",
    )
    speculative_config: str = option(
        "", 'drafts tokens: {"method": "ngram", "num_speculative_tokens": 5} (JSON; --engine torch)'
    )

    pooling: Pooling = option(
        "auto", "what an embedding is made of; auto as the model says, else last, or mean of an encoder"
    )
    normalize_embeddings: bool = option(True, "give embeddings the length 1")

    max_model_len: int | None = option(
        None,
        "longest prompt and output together; the model's own length when not set",
        unit="tokens",
        at_least=2,
        heading="batching and memory",
        contract="EngineConfig.context_length",
    )
    max_num_seqs: int = option(
        64,
        "most sequences that run at the same time",
        aliases=("--max-batch-size",),
        at_least=1,
        contract="EngineConfig.max_num_seqs",
    )
    max_num_batched_tokens: int | None = option(
        None,
        "most tokens computed in one step; chosen by device when not set",
        unit="tokens",
        at_least=1,
        contract="EngineConfig.max_num_batched_tokens",
    )
    block_size: int | None = option(
        None,
        "size of a KV block; when not set 16, and 256 in half precision on a GPU, whose kernel needs that",
        unit="tokens",
        at_least=1,
        contract="EngineConfig.kv_cache_block_size",
    )
    num_gpu_blocks_override: int | None = option(
        None,
        "number of KV blocks, on any device; from the memory when not set",
        aliases=("--num-kv-blocks",),
        at_least=1,
        contract="EngineConfig.total_kv_blocks",
    )
    kv_cache_memory_bytes: int | None = option(
        None, "memory for the KV cache; chosen by device when not set", unit="bytes", at_least=1
    )
    kv_cache_dtype: KvCacheDType = option(
        "auto",
        "type of the numbers in the KV cache; auto is that of --dtype, a smaller one holds more tokens and "
        "changes answers (torch: CPU only)",
    )
    enable_prefix_caching: bool = option(
        True,
        "reuse the KV blocks of equal prompt beginnings (--engine torch)",
        contract="Capabilities.prefix_cache",
    )
    max_batch_prefill_tokens: int | None = option(
        None,
        "most prompt tokens computed in one step; as many as fit when not set (--engine torch)",
        unit="tokens",
        at_least=1,
    )
    max_mixed_prefill_tokens: int | None = option(
        None,
        "most prompt tokens computed in a step in which others decode and wait for it; "
        "half of --max-num-batched-tokens when not set (--engine torch)",
        unit="tokens",
        at_least=1,
    )
    max_batch_total_tokens: int | None = option(
        None,
        "most tokens that prompts and longest outputs of all running sequences may have (--engine torch)",
        unit="tokens",
        at_least=1,
    )
    waiting_served_ratio: float = option(
        0.0,
        "sequences that must wait, per running one, before any of them joins the batch (--engine torch)",
        at_least=0,
    )
    max_waiting_tokens: int = option(
        20, "steps after which waiting sequences join whatever the ratio (--engine torch)", at_least=0
    )

    adapter_folder: Path | None = option(
        None,
        "serve LoRA adapters, in the format of peft, from folders below this one",
        heading="adapters",
        contract="Capabilities.lora",
    )
    max_loras: int = option(
        8, "most adapters that are loaded at the same time", at_least=1, contract="Limits.max_loras"
    )
    max_lora_rank: int = option(64, "largest rank of an adapter", at_least=1)
