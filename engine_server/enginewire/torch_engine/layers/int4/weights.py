"""Weights of 4 bits: how they lie in memory, for the kernel of int4.cpp.

Groups of 32 inputs have a scale and a zero of 8 bits, and chunks of 256 a step in float32, all per output:
4.6 bits a weight. A weight is step × scale × (16 × number − zero), so that within a chunk all is whole
numbers. Knows nothing about products.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from enginewire.torch_engine.layers.int4.grids import ZERO_PARTS, Grids, choose_guesses, fit_grids
from enginewire.torch_engine.layers.kernels.library import INT4_ROUNDING, Kernel, find_kernel

BLOCK = 16
"""Outputs that lie side by side."""
GROUP = 32
"""Inputs that share a scale and a zero."""
PAIR = 2 * GROUP
"""One group lies in the lower halves of bytes, the other in the upper."""
CHUNK = 256
"""Inputs that share a step: sums over so many fit into 32 bits, whatever the inputs."""
WORD = 4
"""Inputs of one output that lie side by side."""
MOST_SCALE = 255
NUMBERS_BYTES = BLOCK * GROUP
PAIR_BYTES = NUMBERS_BYTES + 4 * BLOCK
STEP_BYTES = 4 * BLOCK
SMALLEST_STEP = 1e-30
TRIED = 8
"""Outputs, and groups of each, that say whether weights are of a grid."""
ROUNDED_AT_ONCE = 1 << 15
"""Weights: so many stay in a cache."""


@dataclass(frozen=True, slots=True)
class Int4Weights:
    """A matrix [outputs, inputs] as it lies in memory: [blocks, bytes], filled up to whole blocks and pairs.

    A block has the steps of its chunks, then its pairs: numbers, scales, zeros.
    """

    packed: Tensor
    outputs: int
    inputs: int

    def chunk(self, index: int) -> tuple[Tensor, Tensor]:
        """Steps [outputs], float32, and the whole numbers that they are of, float64 [outputs, inputs]."""
        steps_bytes = -(-self.inputs // CHUNK) * STEP_BYTES
        steps = self.packed[:, index * STEP_BYTES : (index + 1) * STEP_BYTES].contiguous().view(torch.float32)
        pairs = torch.unflatten(self.packed[:, steps_bytes:], 1, (-1, PAIR_BYTES))
        pairs = pairs[:, index * CHUNK // PAIR :][:, : CHUNK // PAIR]
        halves, shared = torch.split(pairs, [NUMBERS_BYTES, PAIR_BYTES - NUMBERS_BYTES], dim=2)
        numbers = torch.unflatten(torch.stack((halves & 15, halves >> 4), dim=2), 3, (-1, BLOCK, WORD))
        scales, zeros = torch.unflatten(shared.double(), 2, (2, 2, 1, BLOCK, 1)).unbind(2)
        whole = scales * (ZERO_PARTS * numbers - zeros)
        rows = whole.permute(0, 4, 1, 2, 3, 5).flatten(2).flatten(0, 1)
        return steps.flatten()[: self.outputs], rows[: self.outputs]


def round_weights(weight: Tensor, *, compiled: bool = True) -> Int4Weights:
    """Weights near to `weight` [outputs, inputs], and the same where it was made of 4 bits before."""
    outputs, inputs = weight.shape
    guesses = guesses_for(weight)
    kernel = _rounding(weight.dtype) if compiled else None
    if kernel is None:
        rows = max(ROUNDED_AT_ONCE // inputs // BLOCK, 1) * BLOCK
        blocks = [_packed(_groups(part), guesses) for part in torch.split(weight, rows)]
        return Int4Weights(torch.cat(blocks), outputs, inputs)
    size = -(-inputs // CHUNK) * STEP_BYTES + -(-inputs // PAIR) * PAIR_BYTES
    packed, weight = torch.empty(-(-outputs // BLOCK), size, dtype=torch.uint8), weight.contiguous()
    tried = torch.tensor(guesses, dtype=torch.int32)
    kernel(packed.data_ptr(), weight.data_ptr(), tried.data_ptr(), outputs, inputs, len(guesses))
    return Int4Weights(packed, outputs, inputs)


def guesses_for(weight: Tensor) -> tuple[int, ...]:
    """What is tried for each group: more if these weights seem to be of a grid."""
    some = weight[:: -(-len(weight) // TRIED), : TRIED * GROUP]
    return choose_guesses(_groups(some)[: len(some)])


@cache
def _rounding(dtype: torch.dtype) -> Kernel | None:
    return find_kernel(INT4_ROUNDING, "round_to_int4", dtype, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)


def _groups(rows: Tensor) -> Tensor:
    """Float32 [outputs, groups, inputs], up to whole blocks and pairs with zeros, which every grid has."""
    outputs, inputs = rows.shape
    filled = pad(rows.float(), (0, -inputs % PAIR, 0, -outputs % BLOCK))
    return torch.unflatten(filled, 1, (-1, GROUP))


def _packed(groups: Tensor, guesses: tuple[int, ...]) -> Tensor:
    wanted = fit_grids(groups, guesses)
    steps, scales = _shared(wanted.worth[..., 0])
    shared = steps.repeat_interleave(CHUNK // GROUP, 1)[:, : scales.shape[1]]
    grids = wanted.with_worth((scales * shared)[..., None], groups)
    return _laid_out(steps / ZERO_PARTS, scales, grids, grids.numbers(groups))


def _shared(worth: Tensor) -> tuple[Tensor, Tensor]:
    """Steps [outputs, chunks], and how many of them a number of each group is nearly worth."""
    groups = CHUNK // GROUP
    chunks = torch.unflatten(pad(worth, (0, -worth.shape[1] % groups)), 1, (-1, groups))
    steps = (chunks.amax(-1) / MOST_SCALE).clamp_(min=SMALLEST_STEP)
    scales = (chunks / steps[..., None]).round_().flatten(1)[:, : worth.shape[1]]
    return steps, scales


def _laid_out(steps: Tensor, scales: Tensor, grids: Grids, numbers: Tensor) -> Tensor:
    def blocked(values: Tensor) -> Tensor:
        return torch.unflatten(values, 0, (-1, BLOCK))

    words = numbers.to(torch.uint8).view(len(numbers), -1, 2, GROUP // WORD, WORD)
    lower, upper = blocked(words).permute(3, 0, 2, 4, 1, 5)
    halves = (lower | upper << 4).flatten(2)
    shared = torch.stack((scales, grids.zeros[..., 0]), dim=1).to(torch.uint8).view(len(scales), 2, -1, 2)
    pairs = torch.cat((halves, blocked(shared).permute(0, 3, 2, 4, 1).flatten(2)), dim=2)
    worth = blocked(steps).transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat((worth.flatten(1), pairs.flatten(1)), dim=1)
