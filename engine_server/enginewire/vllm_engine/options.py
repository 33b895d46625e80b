"""How to run vLLM: one frozen value, and the arguments of vLLM's own command line that it means.

Knows nothing about vLLM's Python. What is not here is said to vLLM itself, in `arguments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewire.server.engines.model_options import ModelOptions

SPARE_LORAS: Final = 1
"""Beside adapters, vLLM for CPUs computes what has none with the last place, which therefore stays empty."""


@dataclass(frozen=True, slots=True)
class VllmEngineOptions(ModelOptions):
    """`arguments` are those of `vllm serve`, as a shell would split them; they come last, so they hold."""

    arguments: tuple[str, ...] = ()

    def command_line(self, folder: Path, more: Iterable[str] = ()) -> list[str]:
        """The arguments for vLLM to serve the model in `folder`, `more`, and those of the caller last."""
        caching = "--enable-prefix-caching" if self.enable_prefix_caching else "--no-enable-prefix-caching"
        # Without it nobody's priority would count; among equals the first comes first, as by vLLM's default.
        first = ["--model", str(folder), "--scheduling-policy", "priority", caching]
        return [*first, *self._numbers(), *self._adapters(), *more, *self.arguments]

    def _adapters(self) -> list[str]:
        if not self.max_loras:
            return []
        # As many in memory as there may be, and the spare one: the server keeps count.
        most = str(self.max_loras + SPARE_LORAS)
        sizes = ["--max-loras", most, "--max-cpu-loras", most, "--max-lora-rank", str(self.max_lora_rank)]
        return ["--enable-lora", *sizes]

    def _numbers(self) -> Iterator[str]:
        given = {
            "--dtype": self.dtype,
            "--kv-cache-dtype": self.kv_cache_dtype,
            "--max-model-len": self.max_model_len,
            "--block-size": self.block_size,
            "--num-gpu-blocks-override": self.num_kv_blocks,
            "--kv-cache-memory-bytes": self.kv_cache_memory_bytes,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--seed": self.seed,
        }
        for flag, value in given.items():
            if value is not None:
                yield from (flag, str(value))
