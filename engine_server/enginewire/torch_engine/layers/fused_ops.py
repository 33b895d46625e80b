"""`VarlenOps` whose small operations are one Triton kernel each.

A decode step on a GPU is over in a few milliseconds, and plain torch starts thirty kernels in each layer of
it. Knows nothing about weights, sequences or sampling.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import KvTensors
from enginewire.torch_engine.layers.kernels.cache import private_folder
from enginewire.torch_engine.layers.ops import TorchOps
from enginewire.torch_engine.layers.varlen_ops import TOLERANCE, VarlenOps, attention_error

log = logging.getLogger(__name__)


class SmallKernels(Protocol):
    """The functions of `triton_ops`."""

    def rms_norm(self, value: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `LayerOps`."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `LayerOps`."""
        ...

    def rotate_and_write(
        self, heads: Tensor, rotation: tuple[Tensor, Tensor], slots: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """The turned query; turned keys and values go to their slots of one layer of the cache."""
        ...


class FusedOps(VarlenOps):
    """`LayerOps` whose attention is that of `base`."""

    def __init__(self, base: VarlenOps, kernels: SmallKernels) -> None:
        super().__init__(base.kernel, takes_key_ends=base.takes_key_ends)
        self._kernels = kernels

    def rms_norm(self, value: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `LayerOps`."""
        return self._kernels.rms_norm(value, weight, eps)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `LayerOps`."""
        return self._kernels.gate(gate_up)

    def _rotate_and_write(
        self, heads: Tensor, rotation: tuple[Tensor, Tensor], slots: Tensor, cache: KvTensors, layer: int
    ) -> Tensor:
        return self._kernels.rotate_and_write(heads, rotation, slots, cache.keys[layer], cache.values[layer])


def find_kernels() -> SmallKernels:
    """The kernels of Triton. Raises anything where there is none, or no place for what it compiles."""
    # What it finds there, it runs.
    folder = os.environ.get("TRITON_CACHE_DIR") or private_folder("triton")
    if folder is None:
        raise FileNotFoundError("Triton has no folder for what it compiles: XDG_CACHE_HOME says where")
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    from enginewire.torch_engine.layers.kernels import triton_ops

    return triton_ops


def fused_ops(
    base: VarlenOps,
    device: torch.device,
    dtype: torch.dtype,
    head_counts: tuple[int, int, int],
    block_size: int,
    find: Callable[[], SmallKernels] = find_kernels,
) -> VarlenOps:
    """`base` with such kernels; `base` itself where they are missing, fail, or compute something else."""
    try:
        ops = FusedOps(base, find())
        error = max(
            _small_error(ops, device, dtype), attention_error(ops, device, dtype, head_counts, block_size)
        )
    except Exception as failure:  # noqa: BLE001  # a compiler is missing, a driver too old: whatever it was
        reason = str(failure).partition("\n")[0] or type(failure).__name__
    else:
        if error < TOLERANCE:
            return ops
        reason = "the kernels compute something else"
    log.warning("norms, gates and rotations run in plain torch, which is slower: %s", reason)
    return base


@torch.inference_mode()
def _small_error(ops: FusedOps, device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference to plain torch, relative to what is there."""
    generator = torch.Generator().manual_seed(0)
    value, weight = (
        torch.randn(shape, generator=generator).to(device, dtype) for shape in ((3, 1536), (1536,))
    )
    plain = TorchOps()
    pairs = (
        (ops.rms_norm(value, weight, 1e-6), plain.rms_norm(value, weight, 1e-6)),
        (ops.gate(value), plain.gate(value)),
    )
    return max(
        float(((a - b).abs() / (1 + b.abs())).float().nan_to_num(nan=torch.inf).max()) for a, b in pairs
    )
