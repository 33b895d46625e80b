"""Which kernels and products compute a model of our own code, by options, device and dtype.

Knows nothing about weights, caches or requests.
"""

from __future__ import annotations

import logging
from functools import partial

import torch
from torch import Tensor

from enginewire.torch_engine.folder.config import ModelConfig
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.layers.compiled_ops import compiled_ops
from enginewire.torch_engine.layers.device import is_far
from enginewire.torch_engine.layers.few_rows import FewRowsLinear, quick_with_few_rows
from enginewire.torch_engine.layers.fused_ops import fused_ops
from enginewire.torch_engine.layers.int4.linear import Int4Linear, int4_kernel
from enginewire.torch_engine.layers.linear import (
    Int8Linear,
    Linear,
    MakeLinear,
    TiledLinear,
    can_quantize,
    make_linear,
)
from enginewire.torch_engine.layers.ops import LayerOps, TorchOps
from enginewire.torch_engine.layers.varlen_ops import varlen_ops
from enginewire.torch_engine.loading.capacity import choose_block_size, choose_kv_dtype
from enginewire.torch_engine.models.decoder import Arithmetic
from enginewire.torch_engine.options import TorchEngineOptions

log = logging.getLogger(__name__)

NOT_QUANTIZED = "quantization {} needs a CPU with oneDNN and the dtype float32 or bfloat16"
SLOW = "quantization int4 without our kernel is slow: int8 is the quicker one here"
NOT_INVARIANT = (
    "batch_invariant needs a CPU, the dtype float32 or bfloat16, compile_kernels and a C++ compiler; "
    "or a GPU, the dtype bfloat16 or float16 and the attention kernel of torch 2.13"
)


def choose_arithmetic(
    options: TorchEngineOptions, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> Arithmetic:
    """The fastest that there is; raises ModelLoadError where the options ask for what there is not."""
    kv_dtype = choose_kv_dtype(options, device, dtype)
    if options.batch_invariant and not is_far(device):
        ops = _invariant_ops(options, device, dtype, kv_dtype)
        return Arithmetic(ops, *map(_tiled, _makers(options, device, dtype, ops)))
    head_counts = config.num_heads, config.num_kv_heads, config.head_dim
    block_size = choose_block_size(options, device, dtype)
    varlen = varlen_ops(device, dtype, head_counts, block_size)
    if options.batch_invariant and varlen is None:
        raise ModelLoadError(NOT_INVARIANT)
    if varlen is not None and options.compile_kernels:
        varlen = fused_ops(varlen, device, dtype, head_counts, block_size)
    compiled = compiled_ops(device, dtype, cached=kv_dtype) if options.compile_kernels else None
    ops = varlen or compiled or TorchOps()
    return Arithmetic(ops, *_makers(options, device, dtype, ops))


def _invariant_ops(
    options: TorchEngineOptions, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype
) -> LayerOps:
    """Prompts go token by token through the kernel of decodes: its sums always have the same order."""
    compiled = compiled_ops(device, dtype, "rows", kv_dtype) if options.compile_kernels else None
    if compiled is None:
        raise ModelLoadError(NOT_INVARIANT)
    return compiled


def _makers(
    options: TorchEngineOptions, device: torch.device, dtype: torch.dtype, ops: LayerOps
) -> tuple[MakeLinear, MakeLinear]:
    """What makes the projections of the layers, and the head, which never has fewer than 8 bits."""
    make: MakeLinear = make_linear
    if options.quantization != "none":
        if device.type != "cpu" or not can_quantize(dtype):
            raise ModelLoadError(NOT_QUANTIZED.format(options.quantization))
        make = partial(Int8Linear, ops=ops)
    make = _quick(make) if options.compile_kernels else make
    if options.quantization == "int4":
        if not options.compile_kernels or int4_kernel(dtype) is None:
            log.warning(SLOW)
        return partial(Int4Linear, compiled=options.compile_kernels), make
    return make, make


def _quick(make: MakeLinear) -> MakeLinear:
    return lambda weight, bias: quick_with_few_rows(make(weight, bias), weight)


def _tiled(make: MakeLinear) -> MakeLinear:
    def tiled(weight: Tensor, bias: Tensor | None) -> Linear:
        base = make(weight, bias)
        if isinstance(base, Int4Linear):
            return base
        # The sums of our own kernels do not depend on how many rows there are.
        return TiledLinear(base, fills_up=not isinstance(base, FewRowsLinear))

    return tiled
