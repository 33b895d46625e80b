"""Projections that adapters change: which there are, and which rows of the current step get what.

The base product stays as it is, packed and fused; what an adapter adds comes on top of the rows that
ask for it, as two thin products per fused projection. A step in which nobody asks costs one test of an
empty list per projection. Knows nothing about requests, files or names of adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from enginewire.torch_engine.layers.device import send_index
from enginewire.torch_engine.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a projection of x: x `down` `up`, [inputs, rank] and [rank, outputs]."""

    down: Tensor
    up: Tensor


LowRanks = Mapping[int, LowRank]
"""By number of the projection; those that are absent stay as they are."""


@dataclass(frozen=True, slots=True)
class Part:
    """One module's place in a fused projection: `outputs` columns from `begin` on."""

    projection: int
    inputs: int
    begin: int
    outputs: int


class AdaptedProjections:
    """All projections of one model that adapters can change. Belongs to the step thread."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.num_rows = 0
        """Rows of the batch that is being changed, 0 when none is."""
        self._outputs: list[int] = []
        self._current: list[tuple[slice | Tensor, LowRanks]] = []

    @property
    def width(self) -> int:
        """Numbers that an adapter of rank 1 for all modules has."""
        return sum(part.inputs + part.outputs for part in self.parts.values())

    def add(self, modules: Seq[str], outputs: Seq[int], inputs: int) -> int:
        """The number of one more projection: `modules` that read the same input, side by side."""
        begin, number = 0, len(self._outputs)
        for module, size in zip(modules, outputs, strict=True):
            self.parts[module] = Part(number, inputs, begin, size)
            begin += size
        self._outputs.append(begin)
        return number

    def fuse(self, number: int, modules: Mapping[str, LowRank]) -> LowRank:
        """Adapters of parts of projection `number` as one: beside each other below, block by block above."""
        down = torch.cat([low_rank.down for low_rank in modules.values()], dim=1)
        up = down.new_zeros(down.shape[1], self._outputs[number])
        row = 0
        for module, low_rank in modules.items():
            part, rank = self.parts[module], len(low_rank.up)
            up[row : row + rank, part.begin : part.begin + part.outputs] = low_rank.up
            row += rank
        return LowRank(down, up)

    @contextmanager
    def changing(
        self, adapters: Iterable[tuple[LowRanks, list[int]]], num_rows: int, device: torch.device
    ) -> Iterator[None]:
        """While the block runs, add each adapter to its rows (ascending) of a batch of `num_rows`."""
        self._current = [(_selection(rows, num_rows, device), low_ranks) for low_ranks, rows in adapters]
        self.num_rows = num_rows
        try:
            yield
        finally:
            self._current, self.num_rows = [], 0

    def change(self, number: int, value: Tensor, product: Tensor) -> Tensor:
        """Add to the `product` [rows, outputs] of projection `number` over `value`; returns it."""
        for rows, low_ranks in self._current:
            low_rank = low_ranks.get(number)
            if low_rank is None:
                continue
            if isinstance(rows, slice):
                product[rows].addmm_(value[rows] @ low_rank.down, low_rank.up)
            else:
                product.index_add_(0, rows, value.index_select(0, rows) @ low_rank.down @ low_rank.up)
        return product


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """A `Linear` whose product adapters change. Its products must be new tensors."""

    base: Linear
    projections: AdaptedProjections
    number: int

    def __call__(self, value: Tensor) -> Tensor:
        """See `Linear`."""
        return self.projections.change(self.number, value, self.base(value))

    def plus(self, value: Tensor, other: Tensor) -> Tensor:
        """See `Linear`."""
        return self.projections.change(self.number, value, self.base.plus(value, other))


def _selection(rows: list[int], num_rows: int, device: torch.device) -> slice | Tensor:
    """Neighbours as a slice, which needs no copy."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(None) if len(rows) == num_rows else slice(rows[0], rows[-1] + 1)
    return send_index(rows, device)
