"""How to run the torch engine: one frozen value, each option declared once.

Knows nothing about torch; impossible combinations are refused here, before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from enginewire.options import json_fields
from enginewire.server.engines.model_options import ModelOptions
from enginewire.server.handoff.options import Role, TransferOptions

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
POOLINGS = ("auto", "last", "mean", "cls")
SMALLER_CACHES = {"bfloat16": "bfloat16", "int8_per_token_head": "int8"}
"""The dtype of the cache, by what `kv_cache_dtype` may be beside auto."""
KV_CACHE_DTYPES = ("auto", *SMALLER_CACHES)
QUANTIZATIONS = ("none", "int8", "int4")
GUIDED_BACKENDS = ("auto", "xgrammar", "llguidance")
MOST_SPECULATIVE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Drafts by prompt lookup, in vLLM's words: `num_speculative_tokens` per draft at most.

    The last `prompt_lookup_max` tokens are looked up, or fewer down to `prompt_lookup_min`. One of the two
    stands for both, and neither for 5, as in vLLM.
    """

    num_speculative_tokens: int
    method: str = "ngram"
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None

    def __post_init__(self) -> None:
        if self.method != "ngram":
            raise ValueError(f"speculative_config: method must be ngram, not {self.method!r}")
        _check_count("num_speculative_tokens", self.num_speculative_tokens)
        for name in ("prompt_lookup_max", "prompt_lookup_min"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        shortest, longest = self.lookup
        if shortest > longest:
            raise ValueError(
                f"speculative_config: prompt_lookup_min must not be above prompt_lookup_max, {longest}"
            )

    @property
    def lookup(self) -> tuple[int, int]:
        """The fewest and the most tokens that are looked up."""
        longest = self.prompt_lookup_max or self.prompt_lookup_min or 5
        return self.prompt_lookup_min or longest, longest

    @staticmethod
    def from_json(text: str) -> SpeculativeConfig:
        """What the option says; raises ValueError that names the key and what is allowed."""
        try:
            given = json_fields(text, [field.name for field in fields(SpeculativeConfig)])
        except ValueError as error:
            raise ValueError(f"speculative_config: {error}") from None
        for name in ("method", "num_speculative_tokens"):
            if name not in given:
                raise ValueError(f"speculative_config: {name} is missing")
        return SpeculativeConfig(**given)


def _check_count(name: str, value: object) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or value not in range(1, MOST_SPECULATIVE_TOKENS + 1):
        allowed = f"a number from 1 to {MOST_SPECULATIVE_TOKENS}"
        raise ValueError(f"speculative_config: {name} must be {allowed}, not {value!r}")


@dataclass(frozen=True, slots=True)
class TorchEngineOptions(ModelOptions):
    """`compile_kernels` uses the machine's C++ compiler, if any. With `batch_invariant` outputs do not
    depend on the batch, bit for bit. With `async_scheduling` a GPU gets its next step before the tokens of
    this one are read; with `enforce_eager` it runs no graphs. The options of batching are explained at
    `AdmissionRules`. `pooling` says how an input becomes a vector, auto as the model folder says. A role
    other than aggregated needs `transfer`. `thinking_token_ids` open and close thinking, where the
    tokenizer does not say it. `guided_backend` is the grammar library of requests that name none, auto the
    first that is installed; `guided_disable_any_whitespace` is for JSON of requests that do not say which
    white space they bear. With a `speculative_config` tokens are drafted, and `async_scheduling` is off.
    """

    served_model_name: str = ""
    device: str = "auto"
    quantization: str = "none"
    num_threads: int | None = None
    compile_kernels: bool = True
    batch_invariant: bool = False
    async_scheduling: bool = True
    enforce_eager: bool = False
    max_batch_prefill_tokens: int | None = None
    max_mixed_prefill_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    waiting_served_ratio: float = 0.0
    max_waiting_tokens: int = 20
    pooling: str = "auto"
    normalize_embeddings: bool = True
    role: Role = "aggregated"
    transfer: TransferOptions | None = None
    thinking_token_ids: tuple[int, ...] = ()
    guided_backend: str = "auto"
    guided_disable_any_whitespace: bool = False
    speculative_config: SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            allowed = ", ".join(KV_CACHE_DTYPES)
            raise ValueError(f"kv_cache_dtype must be one of {allowed}, not {self.kv_cache_dtype!r}")
        if self.quantization not in QUANTIZATIONS:
            raise ValueError(
                f"quantization must be one of {', '.join(QUANTIZATIONS)}, not {self.quantization!r}"
            )
        if self.guided_backend not in GUIDED_BACKENDS:
            raise ValueError(
                f"guided_backend must be one of {', '.join(GUIDED_BACKENDS)}, not {self.guided_backend!r}"
            )
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.pooling!r}")
        if (self.role == "aggregated") != (self.transfer is None):
            raise ValueError("transfer belongs to the roles prefill and decode")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must not be below max_num_seqs")
        if self.batch_invariant and self.max_loras:
            raise ValueError("batch_invariant is not for engines with adapters (max_loras)")
        if self.batch_invariant and self.enforce_eager:
            raise ValueError("batch_invariant needs graphs on a GPU, which enforce_eager forbids")
        if self.max_loras < 0:
            raise ValueError(f"max_loras must not be negative, not {self.max_loras}")
        if len(set(self.thinking_token_ids)) != len(self.thinking_token_ids) or (
            len(self.thinking_token_ids) not in (0, 2)
        ):
            raise ValueError("thinking_token_ids must be two different ids, or none")
        if self.waiting_served_ratio < 0 or self.max_waiting_tokens < 0:
            raise ValueError("waiting_served_ratio and max_waiting_tokens must not be negative")


_POSITIVE = (
    "max_model_len",
    "block_size",
    "num_kv_blocks",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_threads",
    "max_batch_prefill_tokens",
    "max_mixed_prefill_tokens",
    "max_batch_total_tokens",
    "max_lora_rank",
)
