"""The same operations as `TorchOps`, by the kernels of ops.cpp and attention.cpp. CPU only.

Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import AttentionPlan, KvTensors, RaggedRows, Reading
from enginewire.torch_engine.layers.kernels.library import (
    COMPILED_DTYPES,
    OPS,
    Kernel,
    attention,
    dtype_name,
    kernel_library,
    kernel_name,
)


class CompiledOps:
    """`LayerOps` for one dtype, and one of the cache. Tensors must be contiguous and on the CPU."""

    def __init__(
        self, ops: ctypes.PyDLL, attending: ctypes.PyDLL, dtype: torch.dtype, reading: Reading = "ragged"
    ) -> None:
        """`attending` is built for this dtype, and for the one of the cache."""
        self.reading = reading
        pointer, size = ctypes.c_void_p, ctypes.c_int64

        def bind(library: ctypes.PyDLL, name: str, *kinds: type) -> Kernel:
            kernel = library[name]
            kernel.argtypes, kernel.restype = kinds, None
            return kernel

        def named(name: str) -> str:
            return kernel_name(name, dtype)

        self._rms_norm = bind(ops, named("rms_norm"), *[pointer] * 3, *[size] * 3, ctypes.c_float)
        self._gate = bind(ops, named("gate"), *[pointer] * 2, *[size] * 2)
        self._round_rows = bind(ops, named("round_rows"), *[pointer] * 3, *[size] * 2)
        self._write_cache = bind(attending, "write_cache", *[pointer] * 6, *[size] * 4)
        self._attend_rows = bind(attending, "attend_rows", *[pointer] * 6, *[size] * 7)
        self._attend_chunk = bind(attending, "attend_chunk", *[pointer] * 5, *[size] * 7)

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
        kv_heads, head_dim = keys.shape[2], heads.shape[2]
        tokens, num_heads = len(heads), heads.shape[1] - 2 * kv_heads
        stored = keys.data_ptr(), values.data_ptr()
        turned = [part.data_ptr() for part in rotation]
        sizes = num_heads, kv_heads, head_dim
        self._write_cache(heads.data_ptr(), *turned, plan.slots.data_ptr(), *stored, tokens, *sizes)
        attended = heads.new_empty(tokens, num_heads, head_dim)
        if plan.ragged:
            pointers = attended.data_ptr(), heads.data_ptr(), *stored
            self._attend_rows(*pointers, *_ragged(plan.ragged), cache.block_size, *sizes, window or 0)
        for chunk in plan.chunks:
            rows = attended[chunk.rows].data_ptr(), heads[chunk.rows].data_ptr()
            spanned = chunk.num_new, chunk.context, cache.block_size
            self._attend_chunk(*rows, *stored, chunk.blocks.data_ptr(), *spanned, *sizes, window or 0)
        return attended.flatten(1)


def _ragged(rows: RaggedRows) -> tuple[int, int, int, int]:
    return rows.blocks.data_ptr(), rows.contexts.data_ptr(), *rows.blocks.shape


def compiled_ops(
    device: torch.device,
    dtype: torch.dtype,
    reading: Reading = "ragged",
    cached: torch.dtype | None = None,
) -> CompiledOps | None:
    """The kernels for such tensors, `reading` ragged or rows; None where they cannot be had.

    The cache is of the dtype `cached`, the same when not given.
    """
    if device.type != "cpu" or dtype_name(dtype) not in COMPILED_DTYPES:
        return None
    ops = kernel_library(OPS)
    attending = kernel_library(attention(dtype_name(dtype), dtype_name(cached or dtype)))
    return CompiledOps(ops, attending, dtype, reading) if ops and attending else None
