"""The same operations as `TorchOps`, by the kernels of kernels.cpp. CPU only.

The machine's own compiler builds them at the first start, in about a second, and they stay in the user's
cache folder; a machine without one stays with torch. Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import AttentionPlan, KvTensors, RaggedRows, Reading, attend
from enginewire.torch_engine.layers.library_cache import LibraryCache, user_cache_folder

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
COMPILERS = ("c++", "g++", "clang++")
BUILD_SECONDS = 60.0
BUILD = ("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC")
ARITHMETIC = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math")
"""Sums may be reordered, but infinities and NaN keep their meaning."""
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

Kernel = Callable[..., None]


class CompiledOps:
    """`LayerOps` for one dtype. Tensors must be contiguous and on the CPU."""

    def __init__(self, library: ctypes.PyDLL, dtype: torch.dtype, reading: Reading = "ragged") -> None:
        self.reading = reading
        pointer, size = ctypes.c_void_p, ctypes.c_int64

        def bind(name: str, *kinds: type) -> Kernel:
            kernel = library[f"{name}_{DTYPES[dtype]}"]
            kernel.argtypes, kernel.restype = kinds, None
            return kernel

        self._rms_norm = bind("rms_norm", *[pointer] * 3, *[size] * 3, ctypes.c_float)
        self._gate = bind("gate", *[pointer] * 2, *[size] * 2)
        self._round_rows = bind("round_rows", *[pointer] * 3, *[size] * 2)
        self._rotate_and_write = bind("rotate_and_write", *[pointer] * 6, *[size] * 4)
        self._decode = bind("decode", *[pointer] * 6, *[size] * 7)

    def rms_norm(self, value: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `LayerOps`."""
        value = value.contiguous()
        normed = torch.empty_like(value)
        size = len(weight)
        pointers = normed.data_ptr(), value.data_ptr(), weight.data_ptr()
        self._rms_norm(*pointers, value.numel() // size, size, size, eps)
        return normed

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `LayerOps`."""
        rows, width = gate_up.shape
        gated = gate_up.new_empty(rows, width // 2)
        self._gate(gated.data_ptr(), gate_up.data_ptr(), rows, width // 2)
        return gated

    def round_rows(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerOps`."""
        value = value.contiguous()
        rows, width = value.shape
        rounded, scales = value.new_empty(rows, width, dtype=torch.uint8), torch.empty(rows, 1)
        self._round_rows(rounded.data_ptr(), scales.data_ptr(), value.data_ptr(), rows, width)
        return rounded, scales

    def attend(
        self,
        heads: Tensor,
        rotation: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        cache: KvTensors,
        layer: int,
        window: int | None,
    ) -> Tensor:
        """See `LayerOps`."""
        keys, values = cache.keys[layer], cache.values[layer]
        kv_heads, head_dim = keys.shape[2:]
        tokens, num_heads = len(heads), heads.shape[1] - 2 * kv_heads
        stored = keys.data_ptr(), values.data_ptr()
        turned = [part.data_ptr() for part in rotation]
        sizes = num_heads, kv_heads, head_dim
        self._rotate_and_write(heads.data_ptr(), *turned, plan.slots.data_ptr(), *stored, tokens, *sizes)
        attended = heads.new_empty(tokens, num_heads, head_dim)
        if plan.ragged:
            pointers = attended.data_ptr(), heads.data_ptr(), *stored
            self._decode(*pointers, *_ragged(plan.ragged), cache.block_size, *sizes, window or 0)
        for group in plan.groups:
            query = heads[group.rows, :num_heads]
            attended[group.rows] = attend(query, cache, layer, group, window)
        return attended.flatten(1)


def _ragged(rows: RaggedRows) -> tuple[int, int, int, int]:
    return rows.blocks.data_ptr(), rows.contexts.data_ptr(), *rows.blocks.shape


def compiled_ops(device: torch.device, dtype: torch.dtype, reading: Reading = "ragged") -> CompiledOps | None:
    """The kernels for such tensors, `reading` ragged or rows; None where they cannot be had."""
    if device.type != "cpu" or dtype not in DTYPES:
        return None
    library = _library()
    return CompiledOps(library, dtype, reading) if library else None


@cache
def _library() -> ctypes.PyDLL | None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        log.info("no C++ compiler: decode steps run in plain torch")
        return None
    command, cached = [compiler, *BUILD, *ARITHMETIC], LibraryCache(user_cache_folder())
    try:
        name = _name(command)
        return cached.load(name) or _build(command, name, cached)
    except (OSError, subprocess.SubprocessError) as error:
        log.info("the C++ compiler cannot build the kernels: decode steps run in plain torch (%s)", error)
        return None


def _name(command: list[str]) -> str:
    """Stands for what the compiler builds here: the source, its version, and what "native" means to it."""
    told = _run([*command, "-###", "-E", "-x", "c++", os.devnull]).stderr
    return f"kernels-{sha256(SOURCE.read_bytes() + told).hexdigest()}.so"


def _build(command: list[str], name: str, cached: LibraryCache) -> ctypes.PyDLL:
    with tempfile.TemporaryDirectory(prefix="enginewire-") as folder:
        target = Path(folder) / name
        _run([*command, "-o", str(target), str(SOURCE)])
        # The calls of a PyDLL are too short to be worth giving up the interpreter lock.
        library = ctypes.PyDLL(str(target))
        cached.store(name, target.read_bytes())
        return library


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)  # noqa: S603  # ours
