"""What adapters add to fused projections equals what they add to each module alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from enginewire.torch_engine.layers.linear import Int8Linear, PlainLinear, make_linear
from enginewire.torch_engine.lora.projections import AdaptedLinear, AdaptedProjections, LowRank

INPUTS, SIZES = 16, {"q": 16, "k": 8, "v": 8}
CPU = torch.device("cpu")
ROWS = st.lists(st.sampled_from([None, "A", "B", "C"]), min_size=1, max_size=12)
MODULES = st.lists(st.sampled_from(sorted(SIZES)), unique=True)


def low_rank(rank: int, outputs: int, seed: int) -> LowRank:
    make = torch.Generator().manual_seed(seed)
    return LowRank(torch.randn(INPUTS, rank, generator=make), torch.randn(rank, outputs, generator=make))


def projections() -> AdaptedProjections:
    made = AdaptedProjections()
    made.add(["other"], [3], INPUTS)
    assert made.add(list(SIZES), list(SIZES.values()), INPUTS) == 1
    return made


@given(ROWS, st.tuples(MODULES, MODULES, MODULES))
def test_every_row_gets_its_own_adapter_in_every_module(owners, chosen):
    adapted, modules = projections(), {}
    for seed, (name, parts) in enumerate(zip("ABC", chosen, strict=True)):
        modules[name] = {part: low_rank(seed + 1, SIZES[part], seed) for part in parts}
    fused = {name: {1: adapted.fuse(1, parts)} if parts else {} for name, parts in modules.items()}
    value, product = torch.randn(len(owners), INPUTS), torch.randn(len(owners), sum(SIZES.values()))
    wanted = [part.clone() for part in product.split(list(SIZES.values()), dim=1)]
    for row, owner in enumerate(owners):
        for number, part in enumerate(SIZES):
            if owner and part in modules[owner]:
                added = modules[owner][part]
                wanted[number][row] += value[row] @ added.down @ added.up
    rows = {name: [i for i, owner in enumerate(owners) if owner == name] for name in "ABC"}
    using = [(fused[name], numbers) for name, numbers in rows.items() if numbers]
    with adapted.changing(using, len(owners), CPU):
        adapted.change(1, value, product)
    torch.testing.assert_close(product, torch.cat(wanted, dim=1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (PlainLinear, torch.float32),
        (PlainLinear, torch.float16),
        (make_linear, torch.float32),
        (make_linear, torch.bfloat16),
        (Int8Linear, torch.bfloat16),
    ],
)
def test_a_linear_of_any_form_changes_while_it_is_told_to_and_not_its_inputs(form, dtype):
    torch.manual_seed(0)
    adapted = projections()
    base = form(torch.randn(sum(SIZES.values()), INPUTS, dtype=dtype), None)
    linear = AdaptedLinear(base, adapted, 1)
    value, other = torch.randn(3, INPUTS, dtype=dtype), torch.randn(3, sum(SIZES.values()), dtype=dtype)
    kept = value.clone()
    wide = low_rank(2, SIZES["q"], 0)
    added = LowRank(wide.down.to(dtype), wide.up.to(dtype))
    with adapted.changing([({1: adapted.fuse(1, {"q": added})}, [0, 2])], 3, CPU):
        called, summed = linear(value), linear.plus(value, other.clone())
    change = torch.zeros(3, sum(SIZES.values()))
    change[[0, 2], : SIZES["q"]] = value[[0, 2]].float() @ wide.down @ wide.up
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    close = {"atol": tolerance, "rtol": tolerance, "check_dtype": False}
    torch.testing.assert_close(called, base(value) + change, **close)
    torch.testing.assert_close(summed, base.plus(value, other) + change, **close)
    assert called.dtype == summed.dtype == dtype
    assert torch.equal(linear(value), base(value)), "it goes on after the step"
    assert torch.equal(value, kept)
