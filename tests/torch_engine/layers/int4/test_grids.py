"""Grids of 16 values lie near the weights that they are for, and are found again where there were some."""

from __future__ import annotations

import pytest
import torch

from enginewire.torch_engine.layers.int4.grids import (
    ALL_GUESSES,
    GUESSES,
    MOST,
    MOST_ZERO,
    ZERO_PARTS,
    choose_guesses,
    fit_grids,
)

OUTPUTS, GROUPS, SIZE = 24, 16, 32


def fitted(groups: torch.Tensor) -> torch.Tensor:
    grids = fit_grids(groups, choose_guesses(groups))
    assert grids.zeros.equal(grids.zeros.round().clamp(0, MOST_ZERO))
    return grids.values(grids.numbers(groups))


def between_the_ends(groups: torch.Tensor) -> torch.Tensor:
    """As Q4_1 does it."""
    lowest, highest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    worth = (highest - lowest) / MOST
    return ((groups - lowest) / worth).round() * worth + lowest


def test_weights_are_nearer_than_on_grids_between_their_ends():
    torch.manual_seed(0)
    groups = torch.randn(OUTPUTS, GROUPS, SIZE)
    error = (fitted(groups) - groups).square().mean()
    # Of 8 drawings the ratio was between 0.80 and 0.83.
    assert error < 0.88 * (between_the_ends(groups) - groups).square().mean()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_no_weight_of_a_group_is_far_from_its_grid(scale):
    torch.manual_seed(1)
    groups = torch.randn(OUTPUTS, GROUPS, SIZE) * scale
    span = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    # Both ends are cut by at most a step and a half of the smallest steps that are tried.
    assert ((fitted(groups) - groups).abs() < 1.5 * span / MOST).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zeros", ["in the middle", "whole", "any"])
@pytest.mark.parametrize("together", [1, 4])
def test_weights_that_were_of_a_grid_stay_what_they_were(zeros, together, dtype):
    """As Q4_0 and GPTQ, AWQ, or Q4_1 have them; a grid may be that of several groups."""
    torch.manual_seed(2)
    shape = OUTPUTS, GROUPS // together, 1
    worth = torch.rand(shape) * 0.02 + 0.01
    zero = {"in the middle": torch.full(shape, 8.0), "whole": torch.randint(5, 11, shape).float()}
    zero["any"] = torch.rand(shape) * 6 + 5
    drawn = torch.randn(OUTPUTS, GROUPS // together, SIZE * together) * 2.6 + 8
    weights = (drawn.round().clamp(0, MOST) - zero[zeros]) * worth
    groups = weights.view(OUTPUTS, GROUPS, SIZE)
    steps = (fitted(groups.to(dtype).float()) - groups).view_as(weights) / worth
    # A zero is rounded to a 16th of a step, and a weight in bfloat16 to a 256th of itself.
    assert steps.abs().max() < 0.5 / ZERO_PARTS + 8 / 256
    assert steps.abs().mean() < 0.02
    # Other weights would be a quarter of a step away.
    assert (between_the_ends(groups) - groups).view_as(weights).div(worth).abs().mean() > 0.05


def test_only_what_was_of_a_grid_is_looked_at_longer():
    torch.manual_seed(4)
    groups = torch.randn(OUTPUTS, GROUPS, SIZE)
    assert choose_guesses(groups) == GUESSES
    assert choose_guesses(groups.mul(2).round()) == ALL_GUESSES
    # As it may be where several matrices are one.
    groups[:16].mul_(2).round_()
    assert choose_guesses(groups) == ALL_GUESSES


@pytest.mark.parametrize("value", [0.0, 0.7, -0.7, 1e-35])
def test_groups_of_one_value_keep_it(value):
    groups = torch.full((3, 2, SIZE), value)
    torch.testing.assert_close(fitted(groups), groups, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("sign", [1, -1])
def test_groups_on_one_side_of_zero_have_grids_that_reach_it(sign):
    torch.manual_seed(3)
    groups = sign * (torch.rand(OUTPUTS, GROUPS, SIZE) + 2)
    # Rounded to the nearest of steps that reach from zero to 3, which a fit may only make better.
    assert (fitted(groups) - groups).square().mean() < (3 / MOST) ** 2 / 12
