"""Weights that others have quantised, as the floats that they stand for.

Whole numbers of 4 or 8 bits, several to a 32-bit word, or floats of 8 bits, with scales. Knows the formats
that `quant_method` names, and nothing about files or layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Parts = Callable[[str], Tensor | None]
"""The tensor of a projection with this last name, None if there is none."""

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word AWQ keeps the number of each of 8 columns."""


class Format(Protocol):
    """How a method stores the weight of a projection."""

    @property
    def mark(self) -> str:
        """The last name of a tensor that only a stored projection has."""
        ...

    def floats(self, parts: Parts) -> Tensor:
        """The weight [outputs, inputs], float32. Raises ValueError; KeyError for a part that is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ: numbers of one output lie in words along the inputs. Version 1 keeps each zero less one."""

    zero_offset: int
    mark: str = "qweight"

    def floats(self, parts: Parts) -> Tensor:
        """See `Format`."""
        packed, scales = needed(parts, "qweight"), needed(parts, "scales").float()
        inputs, zeros = parts("g_idx"), needed(parts, "qzeros")
        bits = 32 * zeros.shape[1] // scales.shape[1]
        numbers = unpacked(packed.T, bits)
        groups = inputs.long() if inputs is not None else group_of(numbers.shape[1], len(scales))
        # A zero of the highest value is stored as one less, which may have wrapped around.
        zero = (unpacked(zeros, bits) + self.zero_offset) % (1 << bits)
        return (numbers - zero[groups].T) * scales[groups].T


@dataclass(frozen=True, slots=True)
class Awq:
    """AWQ: numbers of one input lie in words along the outputs, in an order of their own."""

    mark: str = "qweight"

    def floats(self, parts: Parts) -> Tensor:
        """See `Format`."""
        scales = needed(parts, "scales").float()
        numbers, zeros = (self._ordered(needed(parts, name)) for name in ("qweight", "qzeros"))
        groups = group_of(len(numbers), len(scales))
        return ((numbers - zeros[groups]) * scales[groups]).T

    def _ordered(self, packed: Tensor) -> Tensor:
        numbers = unpacked(packed, 4)
        return numbers.view(len(numbers), -1, 8)[:, :, list(AWQ_ORDER)].flatten(1)


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """compressed-tensors: integers, packed or not, or floats of 8 bits, with scales of several shapes."""

    mark: str = "weight_scale"

    def floats(self, parts: Parts) -> Tensor:
        """See `Format`."""
        scales = needed(parts, "weight_scale").float()
        packed, zeros = parts("weight_packed"), parts("weight_zero_point")
        if packed is None:
            numbers = needed(parts, "weight").float()
        else:
            outputs, inputs = map(int, needed(parts, "weight_shape"))
            bits = 32 * packed.shape[1] // inputs
            # What was signed is stored from zero on; so are the zeros, which lie in words along the outputs.
            numbers = unpacked(packed, bits)[:, :inputs] - (1 << bits - 1)
            if zeros is not None:
                zeros = unpacked(zeros.T, bits)[:, :outputs].T - (1 << bits - 1)
        outputs, inputs = numbers.shape
        spread = Spread(outputs, inputs, parts("weight_g_idx"))
        return (numbers - (spread(zeros.float()) if zeros is not None else 0)) * spread(scales)


@dataclass(frozen=True, slots=True)
class BlockFloats:
    """Floats of 8 bits with a scale for each block of outputs and inputs, as DeepSeek's and Qwen's."""

    block: tuple[int, int]
    mark: str = "weight_scale_inv"

    def floats(self, parts: Parts) -> Tensor:
        """See `Format`."""
        numbers, scales = needed(parts, "weight").float(), needed(parts, "weight_scale_inv").float()
        # The last block of a side may be smaller.
        rows, columns = (
            torch.arange(size) // part for size, part in zip(numbers.shape, self.block, strict=True)
        )
        return numbers * scales[rows][:, columns]


@dataclass(frozen=True, slots=True)
class Spread:
    """Values by tensor, output, group of inputs or block, as one for each weight [outputs, inputs]."""

    outputs: int
    inputs: int
    groups: Tensor | None

    def __call__(self, values: Tensor) -> Tensor:
        """`values` has up to two dimensions, each of which divides that of the weights."""
        values = values.reshape(-1, 1) if values.dim() < 2 else values
        rows = group_of(self.outputs, len(values))
        columns = group_of(self.inputs, values.shape[1]) if self.groups is None else self.groups.long()
        return values[rows][:, columns]


def read_format(config: Mapping[str, object]) -> Format | None:
    """Of the fields of `config.json`: None where nothing is quantised. Raises ValueError."""
    found = config.get("quantization_config") or config.get("compression_config")
    if found is None:
        return None
    fields = found if isinstance(found, Mapping) else {}
    method = one_of(fields, "quant_method", None, ("awq", "compressed-tensors", "fp8", "gptq"))
    if method == "gptq":
        version = one_of(fields, "checkpoint_format", "gptq", ("gptq", "gptq_v2"))
        return Gptq(zero_offset=int(version == "gptq"))
    if method == "awq":
        one_of(fields, "version", "gemm", ("gemm",))
        return Awq()
    return CompressedTensors() if method == "compressed-tensors" else BlockFloats(block_of(fields))


def block_of(fields: Mapping[str, object]) -> tuple[int, int]:
    """The sizes of a block, outputs and inputs; raises ValueError."""
    match fields.get("weight_block_size"):
        case [int(outputs), int(inputs)] if outputs > 0 and inputs > 0:
            return outputs, inputs
    raise ValueError("weight_block_size must be two positive numbers")


def one_of(fields: Mapping[str, object], name: str, default: str | None, choices: tuple[str, ...]) -> str:
    """A field; raises ValueError for anything but one of `choices`."""
    value = fields.get(name) or default
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r:.40}")
    return str(value)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Numbers of 4 or 8 bits, from 0 on, out of int32 words [rows, words]: the lowest bits come first."""
    if words.dtype != torch.int32 or bits not in (4, 8):
        raise ValueError(f"numbers of {bits} bits in {words.dtype}; only 4 and 8 in int32 are supported")
    shifts = torch.arange(0, 32, bits)
    return (words[:, :, None] >> shifts & (1 << bits) - 1).flatten(1)


def group_of(size: int, groups: int) -> Tensor:
    """The group of each of `size`, where groups of equal size follow each other; raises ValueError."""
    if not groups or size % groups:
        raise ValueError(f"{groups} scales for {size}")
    return torch.arange(size) // (size // groups)


def needed(parts: Parts, name: str) -> Tensor:
    """A part that has to be there; raises KeyError."""
    part = parts(name)
    if part is None:
        raise KeyError(name)
    return part
