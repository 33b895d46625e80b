"""Weights of 4 bits lie in memory as the kernel reads them, and say what they are."""

from __future__ import annotations

import shutil

import pytest
import torch

from enginewire.torch_engine.layers.int4 import weights as module
from enginewire.torch_engine.layers.int4.grids import ALL_GUESSES, GUESSES
from enginewire.torch_engine.layers.int4.weights import (
    BLOCK,
    CHUNK,
    GROUP,
    PAIR,
    Int4Weights,
    guesses_for,
    round_weights,
)
from enginewire.torch_engine.layers.kernels.library import COMPILERS

SHAPES = [(16, 64), (130, 100), (10, 32), (24, 1120), (1, 1), (33, 256)]


def floats(weight: torch.Tensor) -> torch.Tensor:
    return floats_of(round_weights(weight))


def floats_of(rounded: Int4Weights) -> torch.Tensor:
    chunks = [rounded.chunk(index) for index in range(-(-rounded.inputs // CHUNK))]
    return torch.cat([steps[:, None] * numbers for steps, numbers in chunks], dim=1)[:, : rounded.inputs]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_weight_is_near_what_it_was(shape, dtype):
    torch.manual_seed(shape[0])
    weight = torch.randn(shape).to(dtype)
    found = floats(weight)
    assert found.shape == shape
    # A step is a 15th of what the values of a group span, of which the largest weight says the half.
    for part, near in zip(weight.split(GROUP, 1), found.split(GROUP, 1), strict=True):
        assert ((near - part).abs() < 2.2 / 15 * part.abs().amax(1, keepdim=True)).all()
    assert (found - weight).square().mean() < 0.08**2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("draw", ["normal", "heavy tails", "of a grid", "zero"])
def test_the_kernel_makes_the_bytes_that_plain_torch_makes(draw, shape, dtype):
    torch.manual_seed(shape[1])
    weight = {
        "normal": torch.randn(shape),
        "heavy tails": torch.distributions.StudentT(2.0).sample(shape),
        "of a grid": (torch.randn(shape) * 2.6).round().clamp(-8, 7) * 0.013,
        "zero": torch.zeros(shape),
    }[draw].to(dtype)
    assert round_weights(weight).packed.equal(round_weights(weight, compiled=False).packed)


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_a_few_outputs_say_whether_weights_are_of_a_grid(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    assert guesses_for(weight) == GUESSES
    assert guesses_for((weight * 2.6).round().clamp(-8, 7) * 0.013) == ALL_GUESSES


def test_the_kernel_is_there_where_a_compiler_is():
    assert (module._rounding(torch.float32) is not None) == any(map(shutil.which, COMPILERS))


def test_they_take_less_than_five_bits():
    rounded = round_weights(torch.randn(64, 1024))
    assert rounded.packed.numel() * 8 == 4.625 * 64 * 1024
    assert rounded.packed.dtype == torch.uint8


def test_a_block_has_its_steps_first_and_then_pairs_of_groups():
    torch.manual_seed(0)
    weight = torch.randn(2 * BLOCK, CHUNK + PAIR)
    rounded = round_weights(weight)
    output, place = 21, CHUNK + GROUP + 6
    block = rounded.packed[output // BLOCK]
    steps = block[: 2 * 4 * BLOCK].view(torch.float32).view(2, BLOCK)
    pair = block[2 * 4 * BLOCK :].view(5, -1)[place // PAIR]
    lane = output % BLOCK
    number = int(pair[:512].view(8, BLOCK, 4)[6 // 4, lane, 6 % 4]) >> 4
    scale, zero = int(pair[512 + BLOCK + lane]), int(pair[512 + 3 * BLOCK + lane])
    told, numbers = rounded.chunk(1)
    assert told[output] == steps[1, lane]
    assert numbers[output, place - CHUNK] == scale * (16 * number - zero)
    assert abs(steps[1, lane] * scale * (16 * number - zero) - weight[output, place]) < 0.3


def test_groups_that_are_much_smaller_than_others_of_their_chunk_keep_their_shape():
    torch.manual_seed(0)
    weight = torch.randn(32, CHUNK)
    weight[:, GROUP:] /= 30
    small = weight[:, GROUP:]
    # Nothing is lost by the scale that all share: the error of normal weights is a fourteenth of them.
    assert (floats(weight)[:, GROUP:] - small).std() < 0.09 * small.std()


def test_weights_rounded_again_stay_what_they_are():
    torch.manual_seed(0)
    first = floats(torch.randn(48, 512)).float()
    again = floats(first)
    # The scales are rounded once more; numbers that were rounded again would be 0.08 away.
    assert (again - first).std() < 0.004
