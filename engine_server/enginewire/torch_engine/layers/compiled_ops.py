"""The same operations as `TorchOps`, by the kernels of ops.cpp. CPU only.

Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import AttentionPlan, KvTensors, RaggedRows, Reading
from enginewire.torch_engine.layers.kernels.library import OPS, Kernel, kernel_library, kernel_name
from enginewire.torch_engine.layers.linear import PACKED_DTYPES


class CompiledOps:
    """`LayerOps` for one dtype, and one of the cache. Tensors must be contiguous and on the CPU."""

    def __init__(
        self,
        library: ctypes.PyDLL,
        dtype: torch.dtype,
        reading: Reading = "ragged",
        cached: torch.dtype | None = None,
    ) -> None:
        self.reading = reading
        pointer, size = ctypes.c_void_p, ctypes.c_int64

        def bind(name: str, *kinds: type) -> Kernel:
            kernel = library[kernel_name(name, dtype)]
            kernel.argtypes, kernel.restype = kinds, None
            return kernel

        def bind_cached(name: str, *kinds: type) -> Kernel:
            return bind(f"{kernel_name(name, cached or dtype)}_of", *kinds)

        self._rms_norm = bind("rms_norm", *[pointer] * 3, *[size] * 3, ctypes.c_float)
        self._gate = bind("gate", *[pointer] * 2, *[size] * 2)
        self._round_rows = bind("round_rows", *[pointer] * 3, *[size] * 2)
        self._rotate_and_write = bind_cached("rotate_and_write", *[pointer] * 6, *[size] * 4)
        self._decode = bind_cached("decode", *[pointer] * 6, *[size] * 7)
        self._prefill = bind_cached("prefill", *[pointer] * 5, *[size] * 7)

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
        self._rotate_and_write(heads.data_ptr(), *turned, plan.slots.data_ptr(), *stored, tokens, *sizes)
        attended = heads.new_empty(tokens, num_heads, head_dim)
        if plan.ragged:
            pointers = attended.data_ptr(), heads.data_ptr(), *stored
            self._decode(*pointers, *_ragged(plan.ragged), cache.block_size, *sizes, window or 0)
        for chunk in plan.chunks:
            rows = attended[chunk.rows].data_ptr(), heads[chunk.rows].data_ptr()
            spanned = chunk.num_new, chunk.context, cache.block_size
            self._prefill(*rows, *stored, chunk.blocks.data_ptr(), *spanned, *sizes, window or 0)
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
    if device.type != "cpu" or dtype not in PACKED_DTYPES:
        return None
    library = kernel_library(OPS)
    return CompiledOps(library, dtype, reading, cached) if library else None
