"""How to run the torch engine: one frozen value, each option declared once.

Knows nothing about torch; impossible combinations are refused here, before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8")


@dataclass(frozen=True, slots=True)
class TorchEngineOptions:
    """`model` is a folder, `builtin:demo` or a hub name; None everywhere means "choose for me".

    `max_model_len` and `max_num_batched_tokens` count tokens, `kv_cache_memory_bytes` is the
    memory for keys and values unless `num_kv_blocks` says how many blocks there are. `seed`
    makes unseeded requests repeatable. `compile_kernels` uses the machine's C++ compiler, if any. The
    last four are explained at `AdmissionRules`.
    """

    model: str = "builtin:demo"
    served_model_name: str = ""
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    max_model_len: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    seed: int | None = None
    num_threads: int | None = None
    compile_kernels: bool = True
    enable_prefix_caching: bool = True
    max_batch_prefill_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    waiting_served_ratio: float = 0.0
    max_waiting_tokens: int = 20

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.quantization not in QUANTIZATIONS:
            raise ValueError(
                f"quantization must be one of {', '.join(QUANTIZATIONS)}, not {self.quantization!r}"
            )
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must not be below max_num_seqs")
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
    "max_batch_total_tokens",
)
