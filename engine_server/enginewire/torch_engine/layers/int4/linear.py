"""Projections with weights of 4 bits, which stay so in memory. CPU only.

One kernel of our own for any number of rows; plain torch, which gives the same bits, where it cannot be had.
Knows nothing about what is projected.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from enginewire.torch_engine.layers.int4.weights import CHUNK, round_weights
from enginewire.torch_engine.layers.kernels.library import INT4, Kernel, find_kernel, pointer
from enginewire.torch_engine.layers.ops import ROUNDED_ZERO, TorchOps


class Int4Linear:
    """A row of inputs is rounded to 8 bits by a scale of its own, and depends on nothing but itself."""

    __slots__ = ("_kernel", "bias", "weights")

    def __init__(self, weight: Tensor, bias: Tensor | None, *, compiled: bool = True) -> None:
        self.weights = round_weights(weight, compiled=compiled)
        self.bias = bias
        self._kernel = int4_kernel(weight.dtype) if compiled else None

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        return self._product(value, None)

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        return self._product(value, other)

    def _product(self, value: Tensor, other: Tensor | None) -> Tensor:
        if self._kernel is None:
            return self._plain(value, other)
        value, other = value.contiguous(), None if other is None else other.contiguous()
        product = value.new_empty(len(value), self.weights.outputs)
        pointers = product.data_ptr(), value.data_ptr(), self.weights.packed.data_ptr()
        added = pointer(self.bias), pointer(other)
        self._kernel(*pointers, *added, len(value), self.weights.inputs, self.weights.outputs)
        return product

    def _plain(self, value: Tensor, other: Tensor | None) -> Tensor:
        rounded, scales = TorchOps().round_rows(value)
        # float64 holds these sums of whole numbers without rounding, in whatever order.
        rows = rounded.double().sub_(ROUNDED_ZERO)
        product = torch.zeros(len(value), self.weights.outputs)
        for index, part in enumerate(torch.split(rows, CHUNK, dim=1)):
            steps, numbers = self.weights.chunk(index)
            product.add_((part @ numbers[:, : part.shape[1]].T).float().mul_(steps))
        product.mul_(scales)
        if self.bias is not None:
            product.add_(self.bias)
        rounded_product = product.to(value.dtype)
        return rounded_product if other is None else rounded_product.add_(other)


@cache
def int4_kernel(dtype: torch.dtype) -> Kernel | None:
    """None where it cannot be built."""
    return find_kernel(INT4, "product_of_int4", dtype, *[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 3)
