"""Projections: as torch stores them, packed for the processor by oneDNN, or packed as 8-bit integers.

Packed weights are laid out once in the order in which the product reads them, which makes a product
with few rows up to twice as fast. Knows nothing about what is projected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from enginewire.torch_engine.layers.device import join_rows, split_rows
from enginewire.torch_engine.layers.ops import ROUNDED_ZERO, LayerOps, TorchOps
from enginewire.torch_engine.layers.rounding import step_sizes

PACKED_DTYPES = (torch.float32, torch.bfloat16)
PACKED_FOR_ROWS = 32
"""The number of rows a layout is chosen for: of 1, 32 and 512 the one that served all three best."""
TILE_ROWS = 16
"""On two cores a product of 16 rows takes about as long as reading its weights."""


class Linear(Protocol):
    """y = x Wᵀ + b, from [rows, inputs] to [rows, outputs]."""

    def __call__(self, value: Tensor) -> Tensor:
        """The projection."""
        ...

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """The projection, plus `other` [rows, outputs], which may be changed."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """Weights as they are: works on every device and dtype."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        return linear(value, self.weight, self.bias)

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        # Into what is there: the sum is done while the product is still in registers.
        return other.addmm_(value, self.weight.t()) if self.bias is None else self(value).add_(other)


class PackedLinear:
    """Weights in oneDNN's own layout; a sum is done while the product is still in the cache."""

    __slots__ = ("bias", "packed")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self.bias = bias

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        product = torch.ops.mkldnn._linear_pointwise.default
        return cast(Tensor, product(value, self.packed, self.bias, "none", [], ""))

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        product = torch.ops.mkldnn._linear_pointwise.binary
        return cast(Tensor, product(value, other, self.packed, self.bias, "add"))


class Int8Linear:
    """8-bit weights, one scale per output; each row of the input is rounded to 8 bits by its own scale.

    A row's result does not depend on the rows beside it.
    """

    __slots__ = ("_zeros", "bias", "ops", "packed", "scales")

    def __init__(
        self, weight: Tensor, bias: Tensor | None, ops: LayerOps | None = None, steps: int | None = None
    ) -> None:
        """`ops` round the inputs, plain torch where none is given; `steps` are those of `weight_steps`."""
        self.scales = step_sizes(weight.float(), steps or weight_steps())[:, 0]
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.packed: Tensor = torch.ops.onednn.qlinear_prepack(self.rounded(weight), None)
        self.bias = bias
        self.ops = ops or TorchOps()

    def rounded(self, weight: Tensor) -> Tensor:
        """The weights that this was made of in steps of its scales, int8."""
        return (weight.float() / self.scales[:, None]).round().to(torch.int8)

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        rounded, scales = self.ops.round_rows(value)
        product = self._product(rounded).mul_(scales)
        if self.bias is not None:
            product.add_(self.bias)
        return product.to(value.dtype)

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        return self(value).add_(other)

    def _product(self, rounded: Tensor) -> Tensor:
        multiply = torch.ops.onednn.qlinear_pointwise.default
        weight = self.packed, self.scales, self._zeros, None
        inputs = rounded, 1.0, ROUNDED_ZERO
        return cast(Tensor, multiply(*inputs, *weight, 1.0, 0, torch.float32, "none", [], ""))


class TiledLinear:
    """Any of the others by a few rows at a time, so that no row depends on how many there are.

    Libraries choose the order of their sums by the shape of a product: for them the last tile is filled up.
    """

    __slots__ = ("_base", "_fills_up")

    def __init__(self, base: Linear, *, fills_up: bool = True) -> None:
        self._base = base
        self._fills_up = fills_up

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        return join_rows([self._base(tile) for tile in self._split(value)], len(value))

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        pairs = zip(self._split(value), self._split(other), strict=True)
        return join_rows([self._base.plus(tile, added) for tile, added in pairs], len(value))

    def _split(self, rows: Tensor) -> list[Tensor] | tuple[Tensor, ...]:
        return split_rows(rows, TILE_ROWS) if self._fills_up else torch.split(rows, TILE_ROWS)


MakeLinear = Callable[[Tensor, Tensor | None], Linear]


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest form of these weights on their device."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """True when this torch and this processor have packed products for `dtype`."""
    return dtype in PACKED_DTYPES and _computes(PackedLinear, dtype)


@cache
def can_quantize(dtype: torch.dtype) -> bool:
    """True when this torch and this processor have 8-bit products that give `dtype`."""
    return dtype in PACKED_DTYPES and weight_steps() > 0


@cache
def weight_steps() -> int:
    """How many steps on each side of zero 8-bit weights may have here; 0 if there are no 8-bit products.

    x86 without VNNI adds two products in 16 bits, which hold those of 7-bit weights only.
    """
    tried = (steps for steps in (127, 63) if _computes(partial(Int8Linear, steps=steps), torch.float32))
    return next(tried, 0)


def _computes(form: Callable[[Tensor, None], Linear], dtype: torch.dtype) -> bool:
    try:
        tried = form(torch.ones(16, 16, dtype=dtype), None)
        value = torch.ones(1, 16, dtype=dtype)
        return bool((tried.plus(value, value) - 17).abs().max() < 0.1)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
