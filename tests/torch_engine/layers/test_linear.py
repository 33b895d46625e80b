"""Packed weights compute what plain weights compute."""

from __future__ import annotations

import pytest
import torch

from enginewire.torch_engine.layers.compiled_ops import compiled_ops
from enginewire.torch_engine.layers.few_rows import FewRowsLinear, quick_with_few_rows
from enginewire.torch_engine.layers.linear import (
    Int8Linear,
    PackedLinear,
    PlainLinear,
    TiledLinear,
    can_pack,
    make_linear,
)


@pytest.mark.parametrize("rows", [1, 8, 70])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_a_projection_and_its_sum_equal_plain_torch(rows, has_bias, dtype, tolerance):
    torch.manual_seed(rows)
    weight, bias = torch.randn(48, 40).to(dtype) / 6, torch.randn(48).to(dtype)
    value, other = torch.randn(rows, 40).to(dtype), torch.randn(rows, 48).to(dtype)
    made = make_linear(weight, bias if has_bias else None)
    plain = PlainLinear(weight, bias if has_bias else None)
    torch.testing.assert_close(made(value), plain(value), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        made.plus(value, other.clone()), plain.plus(value, other.clone()), rtol=tolerance, atol=tolerance
    )


def test_weights_that_cannot_be_packed_stay_plain():
    assert isinstance(make_linear(torch.ones(4, 4, dtype=torch.float64)), PlainLinear)
    assert isinstance(make_linear(torch.ones(4, 4, device="meta")), PlainLinear)


def test_float32_is_packed_wherever_this_torch_can():
    assert isinstance(make_linear(torch.ones(4, 4)), PackedLinear if can_pack(torch.float32) else PlainLinear)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [None, 63])
def test_eight_bits_come_close(rows, dtype, steps):
    torch.manual_seed(rows)
    weight, bias = torch.randn(48, 256).to(dtype), torch.randn(48).to(dtype)
    value, other = torch.randn(rows, 256).to(dtype), torch.randn(rows, 48).to(dtype)
    expected = PlainLinear(weight, bias).plus(value, other.clone()).float()
    error = Int8Linear(weight, bias, steps=steps).plus(value, other).float() - expected
    assert error.std() < 0.02 * expected.std()


@pytest.mark.parametrize("compiled", [False, True])
def test_eight_bit_rows_do_not_depend_on_their_neighbours(compiled):
    torch.manual_seed(0)
    ops = compiled_ops(torch.device("cpu"), torch.float32) if compiled else None
    projection = Int8Linear(torch.randn(32, 64), None, ops)
    value = torch.randn(5, 64)
    crowd = torch.cat((value[:2], torch.zeros(1, 64), value[2:] * 1000))
    crowd[-1, 3] = float("nan")
    found = projection(crowd)
    assert found[:2].equal(projection(value[:2]))
    assert not found[2].any()
    assert found[3:-1].isfinite().all()
    assert found[-1].isnan().all()


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quick", [False, True])
def test_a_row_of_a_tiled_product_depends_on_nothing_but_itself(rows, dtype, quick):
    torch.manual_seed(rows)
    weight = torch.randn(24, 4864).to(dtype) / 70
    base = make_linear(weight, torch.randn(24).to(dtype))
    base = quick_with_few_rows(base, weight) if quick else base
    projection = TiledLinear(base, fills_up=not isinstance(base, FewRowsLinear))
    value, other = torch.randn(rows, 4864).to(dtype), torch.randn(rows, 24).to(dtype)
    found, sums = projection(value), projection.plus(value, other)
    assert found.shape == sums.shape == (rows, 24)
    assert found.is_contiguous()
    for row in range(rows):
        assert found[row].equal(projection(value[row : row + 1])[0])
        assert sums[row].equal(projection.plus(value[row : row + 1], other[row : row + 1])[0])
