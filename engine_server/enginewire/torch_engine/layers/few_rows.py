"""Products of few rows by kernels of our own, which read the weights that oneDNN has packed. CPU only.

With few rows a product takes as long as reading its weights, and oneDNN reads them at about half of what the
memory gives. What it packed is kept once: products of many rows stay its own. Knows nothing about what is
projected.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from enginewire.torch_engine.layers.kernels.library import PRODUCTS, Kernel, find_kernel, pointer
from enginewire.torch_engine.layers.linear import (
    PACKED_DTYPES,
    TILE_ROWS,
    Int8Linear,
    Linear,
    PackedLinear,
)
from enginewire.torch_engine.layers.ops import ROUNDED_ZERO

BLOCK = 64
"""Outputs that lie side by side."""
GROUP_BYTES = 4
"""Weights of one output that lie side by side."""
SUM_BYTES = 4
"""Behind all blocks of 8-bit weights oneDNN keeps a sum for each output."""
MOST_ROWS = TILE_ROWS
"""Up to here our kernels are quicker, by a tenth at the least."""

Sizes = tuple[int, int, int]
"""Inputs, outputs, and bytes from one block of weights to the next."""


class Product(Protocol):
    """y = x Wᵀ + b + other, from [rows, inputs] to [rows, outputs]."""

    def __call__(self, value: Tensor, other: Tensor | None = None) -> Tensor:
        """The product."""
        ...


class FewRowsLinear:
    """A packed projection whose products of few rows are a kernel's."""

    __slots__ = ("_base", "_product")

    def __init__(self, base: Linear, product: Product) -> None:
        self._base = base
        self._product = product

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        return self._product(value) if len(value) <= MOST_ROWS else self._base(value)

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        if len(value) <= MOST_ROWS:
            return self._product(value, other)
        return self._base.plus(value, other)


class FloatProduct:
    """With weights of the dtype of the rows, summed in float32."""

    __slots__ = ("_bias", "_kernel", "_packed", "_sizes", "_weights")

    def __init__(self, kernel: Kernel, packed: Tensor, bias: Tensor | None, sizes: Sizes) -> None:
        self._kernel = kernel
        self._packed, self._weights = packed, _address(packed)
        self._bias = bias
        self._sizes = sizes

    def __call__(self, value: Tensor, other: Tensor | None = None) -> Tensor:
        """See `Product`."""
        value, other = value.contiguous(), None if other is None else other.contiguous()
        product = value.new_empty(len(value), self._sizes[1])
        pointers = product.data_ptr(), value.data_ptr(), self._weights, pointer(self._bias), pointer(other)
        self._kernel(*pointers, len(value), *self._sizes)
        return product


class StepProduct:
    """With weights of 8 bits, whose products with rows of 8 bits are whole numbers."""

    __slots__ = ("_bias", "_kernels", "_ops", "_packed", "_scales", "_sizes", "_weights", "_zeros")

    def __init__(
        self, kernels: Mapping[torch.dtype, Kernel], base: Int8Linear, zeros: Tensor, sizes: Sizes
    ) -> None:
        """`zeros` [outputs], int32: what a row of zeros, which are `ROUNDED_ZERO`, adds to each sum."""
        self._kernels, self._ops = kernels, base.ops
        self._packed, self._weights = base.packed, _address(base.packed)
        self._scales, self._zeros, self._bias = base.scales.contiguous(), zeros, base.bias
        self._sizes = sizes

    def __call__(self, value: Tensor, other: Tensor | None = None) -> Tensor:
        """See `Product`."""
        rounded, row_scales = self._ops.round_rows(value)
        other = None if other is None else other.contiguous()
        product = value.new_empty(len(value), self._sizes[1])
        rows = product.data_ptr(), rounded.data_ptr(), row_scales.data_ptr()
        weights = self._weights, self._scales.data_ptr(), self._zeros.data_ptr()
        added = pointer(self._bias), pointer(other)
        self._kernels[value.dtype](*rows, *weights, *added, len(value), *self._sizes)
        return product


def quick_with_few_rows(base: Linear, weight: Tensor) -> Linear:
    """`base`, which was made of `weight`, with our kernels for few rows where there are any for it."""
    product = _product_of(base, weight)
    return FewRowsLinear(base, product) if product else base


def _product_of(base: Linear, weight: Tensor) -> Product | None:
    if isinstance(base, PackedLinear):
        kernel, sizes = _kernel("product", weight.dtype, 5), _sizes(base.packed, weight)
        return FloatProduct(kernel, base.packed, base.bias, sizes) if kernel and sizes else None
    if isinstance(base, Int8Linear):
        rounded = base.rounded(weight)
        kernels = {dtype: _kernel("product_of_steps", dtype, 8) for dtype in PACKED_DTYPES}
        found = {dtype: kernel for dtype, kernel in kernels.items() if kernel}
        sizes = _sizes(base.packed, rounded)
        zeros = ROUNDED_ZERO * rounded.sum(1, dtype=torch.int32)
        return StepProduct(found, base, zeros, sizes) if found and sizes else None
    return None


def _kernel(name: str, dtype: torch.dtype, num_pointers: int) -> Kernel | None:
    kinds = [ctypes.c_void_p] * num_pointers + [ctypes.c_int64] * 4
    return find_kernel(PRODUCTS, name, dtype, *kinds)


def _sizes(packed: Tensor, weight: Tensor) -> Sizes | None:
    """None unless oneDNN has packed `weight` [outputs, inputs] as the kernels read it."""
    outputs, inputs = weight.shape
    group = GROUP_BYTES // weight.element_size()
    blocks = -(-outputs // BLOCK)
    pitch = torch.ops.mkldnn._nbytes(packed) // blocks
    if weight.dtype == torch.int8:
        pitch -= BLOCK * SUM_BYTES
    if inputs % group or pitch < inputs * BLOCK * weight.element_size():
        return None
    for block in {0, blocks - 1}:
        lies = (ctypes.c_uint8 * (inputs * BLOCK * weight.element_size())).from_address(
            _address(packed) + block * pitch
        )
        found = torch.frombuffer(lies, dtype=weight.dtype).view(inputs // group, BLOCK, group)
        expected = weight[block * BLOCK :][:BLOCK]
        if not found.transpose(0, 1).reshape(BLOCK, inputs)[: len(expected)].equal(expected):
            return None
    return inputs, outputs, pitch


def _address(packed: Tensor) -> int:
    """Where a tensor in oneDNN's own layout lies."""
    return int(torch.ops.mkldnn.data_ptr(packed))
