"""Products with weights of 4 bits: the kernel, plain torch, and whole numbers of Python's own agree."""

from __future__ import annotations

import shutil
from fractions import Fraction

import pytest
import torch

from enginewire.torch_engine.layers.int4 import linear as module
from enginewire.torch_engine.layers.int4.linear import Int4Linear, int4_kernel
from enginewire.torch_engine.layers.int4.weights import CHUNK
from enginewire.torch_engine.layers.kernels.library import COMPILERS
from enginewire.torch_engine.layers.linear import PlainLinear
from enginewire.torch_engine.layers.ops import ROUNDED_ZERO, TorchOps

SHAPES = [(64, 64), (96, 768), (130, 100), (10, 32), (24, 4864), (17, 300), (1, 1)]
"""Whole blocks and chunks, parts of them, and more than a cache holds."""
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
MANY = 21
"""Rows: two passes of the kernel and a bit of one."""


def drawn(shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    outputs, inputs = shape
    return (torch.randn(shape) / inputs**0.5).to(dtype), torch.randn(outputs).to(dtype)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_kernel_gives_what_plain_torch_gives_bit_for_bit(shape, has_bias, dtype):
    torch.manual_seed(shape[0])
    weight, bias = drawn(shape, dtype)
    bias = bias if has_bias else None
    quick, plain = Int4Linear(weight, bias), Int4Linear(weight, bias, compiled=False)
    for rows in range(1, MANY + 1):
        value, other = torch.randn(rows, shape[1]).to(dtype), torch.randn(rows, shape[0]).to(dtype)
        assert quick(value).equal(plain(value))
        assert quick.plus(value, other).equal(plain.plus(value, other.clone()))


@pytest.mark.parametrize("compiled", [False, True])
def test_products_are_those_of_fractions(compiled):
    seed = torch.seed() % 2**32
    print("seed", seed)
    torch.manual_seed(seed)
    outputs, inputs, rows = 19, 2 * CHUNK + 77, 3
    linear = Int4Linear(torch.randn(outputs, inputs), None, compiled=compiled)
    value = torch.randn(rows, inputs)
    found = linear(value)
    steps, scales = TorchOps().round_rows(value)
    weights = [[Fraction(0)] * 0 for _ in range(outputs)]
    for index in range(3):
        worth, numbers = linear.weights.chunk(index)
        for output in range(outputs):
            weights[output] += [Fraction(float(worth[output])) * int(each) for each in numbers[output]]
    for row in range(rows):
        whole = [int(each) - ROUNDED_ZERO for each in steps[row]]
        for output in range(outputs):
            terms = [weight * step for weight, step in zip(weights[output], whole, strict=False)]
            exact = sum(terms) * Fraction(float(scales[row]))
            size = sum(map(abs, terms)) * Fraction(float(scales[row]))
            # Of three chunks each is rounded twice, then comes a sum, and the scale of the row.
            assert abs(Fraction(float(found[row, output])) - exact) <= size * 6 / 2**24


@DTYPES
@pytest.mark.parametrize("rows", [1, 40])
def test_four_bits_come_close(rows, dtype):
    torch.manual_seed(rows)
    weight, bias = torch.randn(48, 512).to(dtype), torch.randn(48).to(dtype)
    value, other = torch.randn(rows, 512).to(dtype), torch.randn(rows, 48).to(dtype)
    expected = PlainLinear(weight, bias).plus(value, other.clone()).float()
    error = Int4Linear(weight, bias).plus(value, other).float() - expected
    assert error.std() < 0.1 * expected.std()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_that_there_can_be_fit(sign):
    weight = torch.full((16, CHUNK), float(sign))
    value = torch.ones(2, CHUNK)
    value[1] = -1
    quick, plain = Int4Linear(weight, None), Int4Linear(weight, None, compiled=False)
    # The highest numbers beside zeros of 0, or 0 beside the highest zeros, times the highest scales.
    for linear in (quick, plain):
        pairs = linear.weights.packed[:, 64:].view(1, 4, 576)
        pairs[..., :512], pairs[..., 512:544], pairs[..., 544:] = (255, 255, 0) if sign > 0 else (0, 255, 255)
    largest = 127 * CHUNK * 255 * (240 if sign > 0 else 255)
    assert largest < 2**31
    assert quick(value).equal(plain(value))
    step = float(quick.weights.chunk(0)[0][0])
    assert quick(value)[0, 0].item() == pytest.approx(sign * largest * step / 127, rel=1e-6)


@DTYPES
@pytest.mark.parametrize("compiled", [False, True])
def test_a_row_depends_on_nothing_but_itself(compiled, dtype):
    torch.manual_seed(0)
    weight, bias = drawn((130, 768), dtype)
    linear = Int4Linear(weight, bias, compiled=compiled)
    value, other = torch.randn(MANY, 768).to(dtype), torch.randn(MANY, 130).to(dtype)
    alone = [linear.plus(value[row : row + 1], other[row : row + 1].clone()) for row in range(MANY)]
    value[3, 5], value[8, 0], value[9] = float("nan"), float("inf"), 0
    for rows in range(4, MANY + 1):
        found = linear.plus(value[:rows], other[:rows].clone())
        assert not found[3].isfinite().any()
        assert rows < 10 or (not found[8].isfinite().any() and found[9].equal((bias + other[9]).to(dtype)))
        for row in {*range(rows)} - {3, 8, 9}:
            assert found[row].equal(alone[row][0])


def test_two_threads_share_the_work_in_the_same_way():
    torch.manual_seed(0)
    linear = Int4Linear(torch.randn(2000, 512), None)
    value = torch.randn(200, 512)
    alone = linear(value)
    torch.set_num_threads(2)
    try:
        assert linear(value).equal(alone)
    finally:
        torch.set_num_threads(1)


@DTYPES
def test_rows_and_sums_may_lie_apart(dtype):
    torch.manual_seed(0)
    linear = Int4Linear(*drawn((64, 64), dtype))
    value, other = torch.randn(4, 64).to(dtype), torch.randn(4, 64).to(dtype)
    found = linear.plus(torch.cat((value, value), dim=1)[:, :64], torch.stack((other, other), dim=2)[:, :, 0])
    assert found.equal(linear.plus(value, other))


def test_the_kernel_is_there_where_a_compiler_is():
    """Else other tests here would compare plain torch with itself."""
    assert (int4_kernel(torch.float32) is not None) == any(map(shutil.which, COMPILERS))


def test_processors_without_the_instructions_compute_the_same(monkeypatch):
    torch.manual_seed(0)
    value, parts = torch.randn(MANY, 300).bfloat16(), drawn((50, 300), torch.bfloat16)
    expected = Int4Linear(*parts)(value)
    file, arithmetic = module.INT4
    monkeypatch.setattr(module, "INT4", (file, (*arithmetic, "-march=x86-64-v3")))
    int4_kernel.cache_clear()
    try:
        assert Int4Linear(*parts)(value).equal(expected)
    finally:
        int4_kernel.cache_clear()


def test_plain_torch_does_it_without_a_compiler(monkeypatch):
    monkeypatch.setattr(module, "find_kernel", lambda *_: None)
    int4_kernel.cache_clear()
    try:
        assert int4_kernel(torch.float32) is None
        linear = Int4Linear(torch.eye(32), None)
        torch.testing.assert_close(linear(torch.eye(32)), torch.eye(32), rtol=0.01, atol=0.01)
    finally:
        int4_kernel.cache_clear()
