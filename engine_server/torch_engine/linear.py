"""Projections: as torch stores them, or packed for the processor by oneDNN.

Packed weights are laid out once in the order in which the product reads them, which makes a product
with few rows up to twice as fast. Knows nothing about what is projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

PACKED_FOR_ROWS = 32
"""The number of rows a layout is chosen for: of 1, 32 and 512 the one that served all three best."""


class Linear(Protocol):
    """y = x Wᵀ + b, from [rows, inputs] to [rows, outputs]."""

    def __call__(self, value: Tensor) -> Tensor:
        """The projection."""
        ...

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """The projection, plus `other` [rows, outputs]."""
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
        return self(value) + other


class PackedLinear:
    """Weights in oneDNN's own layout; a sum is done while the product is still in the cache."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self._bias = bias

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        product = torch.ops.mkldnn._linear_pointwise.default
        return cast(Tensor, product(value, self._weight, self._bias, "none", [], ""))

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        product = torch.ops.mkldnn._linear_pointwise.binary
        return cast(Tensor, product(value, other, self._weight, self._bias, "add"))


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest form of these weights on their device."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """True when this torch and this processor have packed products for `dtype`."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        packed = PackedLinear(torch.ones(16, 16, dtype=dtype), None)
        value = torch.ones(1, 16, dtype=dtype)
        return bool((packed.plus(value, packed(value)) == 32).all())
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
