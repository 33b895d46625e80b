"""Kernels for few rows compute what the products of oneDNN compute, from the same packed weights."""

from __future__ import annotations

import shutil

import pytest
import torch

from enginewire.torch_engine.layers import few_rows as module
from enginewire.torch_engine.layers.compiled_ops import compiled_ops
from enginewire.torch_engine.layers.few_rows import FewRowsLinear, quick_with_few_rows
from enginewire.torch_engine.layers.kernels.library import COMPILERS
from enginewire.torch_engine.layers.linear import Int8Linear, Linear, PlainLinear, make_linear

FLOATS = [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
SHAPES = [(64, 64), (96, 768), (130, 100), (10, 32), (24, 4864)]
"""One block of outputs and a bit of one, inputs that oneDNN fills up, and more than a cache holds."""
both_dtypes = pytest.mark.parametrize(("dtype", "tolerance"), FLOATS)


def drawn(shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights that give values of about 1, and a bias."""
    outputs, inputs = shape
    return (torch.randn(shape) / inputs**0.5).to(dtype), torch.randn(outputs).to(dtype)


def step_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Int8Linear:
    return Int8Linear(weight, bias, compiled_ops(torch.device("cpu"), weight.dtype))


@both_dtypes
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_and_sums_come_close_to_plain_torch(shape, has_bias, dtype, tolerance):
    torch.manual_seed(shape[0])
    weight, bias = drawn(shape, dtype)
    bias = bias if has_bias else None
    quick, plain = quick_with_few_rows(make_linear(weight, bias), weight), PlainLinear(weight, bias)
    for rows in range(1, module.MOST_ROWS + 2):
        value, other = torch.randn(rows, shape[1]).to(dtype), torch.randn(rows, shape[0]).to(dtype)
        torch.testing.assert_close(quick(value), plain(value), rtol=tolerance, atol=tolerance)
        expected = plain.plus(value, other.clone())
        torch.testing.assert_close(quick.plus(value, other), expected, rtol=tolerance, atol=tolerance)


@both_dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_eight_bits_are_the_same_bit_for_bit(shape, dtype, tolerance):
    torch.manual_seed(shape[0])
    weight, bias = drawn(shape, dtype)
    for base in (step_linear(weight, bias), step_linear(weight, None)):
        quick = quick_with_few_rows(base, weight)
        for rows in range(1, module.MOST_ROWS + 2):
            value, other = torch.randn(rows, shape[1]).to(dtype), torch.randn(rows, shape[0]).to(dtype)
            assert quick(value).equal(base(value))
            assert quick.plus(value, other).equal(base.plus(value, other))


@both_dtypes
@pytest.mark.parametrize("make", [make_linear, step_linear])
def test_a_row_depends_on_nothing_but_itself(make, dtype, tolerance):
    torch.manual_seed(0)
    weight, bias = drawn((130, 768), dtype)
    quick = quick_with_few_rows(make(weight, bias), weight)
    value, other = torch.randn(module.MOST_ROWS, 768).to(dtype), torch.randn(module.MOST_ROWS, 130).to(dtype)
    alone = [quick.plus(value[row : row + 1], other[row : row + 1]) for row in range(len(value))]
    value[3, 5], value[8, 0] = float("nan"), float("inf")
    for rows in range(4, len(value) + 1):
        found = quick.plus(value[:rows], other[:rows])
        assert found[3].isnan().all()
        for row in {*range(rows)} - {3, 8}:
            # oneDNN's own sums depend on the number of rows.
            assert found[row].equal(alone[row][0]) or not isinstance(quick, FewRowsLinear)


@both_dtypes
def test_rows_and_sums_may_lie_apart(dtype, tolerance):
    torch.manual_seed(0)
    weight, bias = drawn((64, 64), dtype)
    quick = quick_with_few_rows(make_linear(weight, bias), weight)
    value, other = torch.randn(4, 64).to(dtype), torch.randn(4, 64).to(dtype)
    found = quick.plus(torch.cat((value, value), dim=1)[:, :64], torch.stack((other, other), dim=2)[:, :, 0])
    assert found.equal(quick.plus(value, other))


def test_processors_that_have_the_instructions_use_them():
    """Else every other test here would compare oneDNN with itself."""
    quick = quick_with_few_rows(make_linear(torch.ones(64, 64)), torch.ones(64, 64))
    has_compiler = any(map(shutil.which, COMPILERS))
    can = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and has_compiler
    assert isinstance(quick, FewRowsLinear) == can


def unchanged(base: Linear, weight: torch.Tensor) -> bool:
    return quick_with_few_rows(base, weight) is base


def test_what_the_kernels_cannot_read_stays_with_onednn(monkeypatch):
    weight = torch.randn(64, 63)
    assert unchanged(PlainLinear(weight, None), weight)
    # Two weights of bfloat16 are a group, and four of 8 bits.
    for odd, group in ((weight.bfloat16(), 2), (weight, 4)):
        made = make_linear(odd) if group == 2 else step_linear(odd, None)
        assert unchanged(made, odd)
    even = torch.randn(128, 64)
    # Weights in another order, as oneDNN might pack them on another processor.
    assert unchanged(make_linear(even.flip(0)), even)
    monkeypatch.setattr(module, "find_kernel", lambda *_: None)
    assert unchanged(make_linear(even), even)
