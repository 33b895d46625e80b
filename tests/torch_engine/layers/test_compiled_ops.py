"""The compiled kernels compute what plain torch computes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from enginewire.torch_engine.layers.attention import KvTensors, Span, plan_attention
from enginewire.torch_engine.layers.compiled_ops import compiled_ops
from enginewire.torch_engine.layers.ops import LayerOps, TorchOps
from enginewire.torch_engine.layers.rounding import from_stored
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import greedy

BLOCK, DIM = 4, 24
CPU = torch.device("cpu")
DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
CACHED = [
    *((dtype, dtype, tolerance) for dtype, tolerance in DTYPES),
    (torch.float32, torch.bfloat16, 1e-2),
    (torch.float32, torch.int8, 3e-2),
    (torch.bfloat16, torch.int8, 3e-2),
]
both_dtypes = pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
all_caches = pytest.mark.parametrize(("dtype", "cached", "tolerance"), CACHED)


def ops(dtype: torch.dtype, cached: torch.dtype | None = None) -> LayerOps:
    """The kernels; on a machine without a compiler the comparison is torch with itself."""
    return compiled_ops(CPU, dtype, cached=cached) or TorchOps()


@both_dtypes
@pytest.mark.parametrize("shape", [(1, 40), (900, 40), (3, 5, 40)])
def test_norms_are_equal(shape, dtype, tolerance):
    torch.manual_seed(0)
    value, weight = torch.randn(*shape).to(dtype), torch.randn(40).to(dtype)
    expected = TorchOps().rms_norm(value, weight, 1e-5)
    torch.testing.assert_close(
        ops(dtype).rms_norm(value, weight, 1e-5), expected, rtol=tolerance, atol=tolerance
    )


@both_dtypes
def test_a_norm_of_a_slice_does_not_read_beyond_it(dtype, tolerance):
    value, weight = torch.randn(6, 7, 8).to(dtype), torch.ones(8, dtype=dtype)
    found = ops(dtype).rms_norm(value[:, 2:4], weight, 1e-5)
    torch.testing.assert_close(
        found, TorchOps().rms_norm(value[:, 2:4], weight, 1e-5), rtol=tolerance, atol=tolerance
    )


@both_dtypes
def test_gates_are_equal_from_end_to_end_of_the_range(dtype, tolerance):
    values = torch.tensor([-1e30, -100.0, -88.5, -20.0, -1.0, -0.0, 0.0, 1e-9, 3.0, 90.0, 1e30])
    gate_up = torch.cat((values, torch.full_like(values, 2.0))).to(dtype).repeat(3, 1)
    torch.testing.assert_close(ops(dtype).gate(gate_up), TorchOps().gate(gate_up), rtol=tolerance, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_fills_its_row_and_stays_there(dtype):
    value = torch.ones(2, 8, dtype=dtype)
    value[0, 3] = float("nan")
    normed, gated = ops(dtype).rms_norm(value, torch.ones(8, dtype=dtype), 1e-5), ops(dtype).gate(value)
    assert normed[0].isnan().all()
    assert gated[0].isnan().tolist() == [False, False, False, True]
    assert normed[1].isfinite().all()
    assert gated[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 600])
def test_rows_are_rounded_alike(rows, dtype):
    torch.manual_seed(rows)
    value = (torch.randn(rows, 48) * torch.logspace(-20, 20, rows)[:, None]).to(dtype)
    value[0, 7] = 0.0
    found, scales = ops(dtype).round_rows(value)
    expected, expected_scales = TorchOps().round_rows(value)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0.0)
    assert found.int().sub(expected.int()).abs().max() <= 1
    assert found[:, :].ne(128).any(dim=1).all()


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_cannot_be_rounded_is_told_by_its_scale_and_a_row_of_zeros_stays(fault, dtype):
    value = torch.zeros(3, 40, dtype=dtype)
    value[0, 3], value[2, 5] = fault, -2.0
    found, scales = ops(dtype).round_rows(value)
    assert scales.isfinite()[:, 0].tolist() == [False, True, True]
    assert (found[1] == 128).all()
    assert (found[2, 5].item(), found[2, 4].item()) == (1, 128)


def fill(cache: KvTensors, slots: slice, number: float | None = None) -> None:
    """Write keys and values that are this number everywhere, or random ones."""
    shape = from_stored(cache.keys[0], torch.float32).flatten(0, 1)[slots].shape
    new = torch.randn(2, *shape) if number is None else torch.full((2, *shape), number)
    cache.write(0, torch.arange(len(cache.keys[0]) * BLOCK)[slots], *new)


@all_caches
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("num_heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
def test_a_mixed_step_is_equal_and_ignores_foreign_blocks(
    num_heads, kv_heads, window, dtype, cached, tolerance
):
    spans, num_blocks = [], 0
    for new, context in [(1, 1), (1, 4), (1, 9), (1, 47), (5, 12), (6, 6)]:
        size = -(-context // BLOCK)
        spans.append(Span(new, context, list(range(num_blocks, num_blocks + size))))
        num_blocks += size
    like = torch.zeros(1, dtype=dtype)
    found = []
    for chosen in (TorchOps(), ops(dtype, cached)):
        torch.manual_seed(1)
        cache = KvTensors(1, (num_blocks + 2, BLOCK, kv_heads, DIM), like, cached)
        fill(cache, slice(0, num_blocks * BLOCK))
        fill(cache, slice(num_blocks * BLOCK, None), float("nan"))
        heads = torch.randn(sum(span.num_new for span in spans), num_heads + 2 * kv_heads, DIM).to(dtype)
        angles = torch.randn(len(heads), 1, DIM // 2)
        rotation = angles.cos().to(dtype), angles.sin().to(dtype)
        plan = plan_attention(spans, BLOCK, frozenset({window}), like, chosen.reading)
        attended = chosen.attend(heads, rotation, plan, cache, 0, window)
        found.append((attended, from_stored(cache._storage[:, :, :num_blocks], dtype)))
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


@all_caches
@pytest.mark.parametrize("window", [None, 40, 300])
@pytest.mark.parametrize(("new", "context"), [(2, 2), (33, 33), (70, 600), (300, 513)])
@pytest.mark.parametrize(("kv_heads", "dim"), [(1, 12), (2, 64)])
def test_long_chunks_are_equal_and_what_was_left_in_their_last_block_is_not_read(
    kv_heads, dim, new, context, window, dtype, cached, tolerance
):
    found = []
    for chosen in (TorchOps(), ops(dtype, cached)):
        torch.manual_seed(2)
        shape = -(-context // BLOCK), BLOCK, kv_heads, dim
        cache = KvTensors(1, shape, torch.zeros(1, dtype=dtype), cached)
        fill(cache, slice(None))
        if chosen.reading == "ragged" and context % BLOCK:
            fill(cache, slice(context % BLOCK, BLOCK), float("nan"))
        heads = torch.randn(new, 4 + 2 * kv_heads, dim).to(dtype)
        found.append(attend_to(chosen, cache, heads, context, window))
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


@all_caches
def test_a_prompt_in_pieces_has_the_bits_of_a_whole_one(dtype, cached, tolerance):
    torch.manual_seed(3)
    heads, chosen = torch.randn(400, 6, DIM).to(dtype), ops(dtype, cached)
    whole, pieces = (KvTensors(1, (400 // BLOCK, BLOCK, 1, DIM), heads, cached) for _ in range(2))
    expected = attend_to(chosen, whole, heads.clone(), 400, None)
    cuts = [0, 5, 250, 301, 400]
    found = [attend_to(chosen, pieces, heads[a:b].clone(), b, None) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(found), expected)


@both_dtypes
def test_two_threads_give_the_bits_of_one(dtype, tolerance):
    torch.manual_seed(4)
    heads, found = torch.randn(400, 6, DIM).to(dtype), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            cache = KvTensors(1, (400 // BLOCK, BLOCK, 1, DIM), torch.zeros(1, dtype=dtype))
            found.append(attend_to(ops(dtype), cache, heads.clone(), 400, None))
        finally:
            torch.set_num_threads(1)
    assert torch.equal(*found)


def attend_to(chosen, cache, heads, context, window):
    """Attention of a chunk, `heads`, at the end of `context` tokens, which fill the last block first."""
    span = Span(len(heads), context, [*reversed(range(len(cache.keys[0])))])
    plan = plan_attention([span], BLOCK, frozenset({window}), heads, chosen.reading)
    angles = torch.zeros(len(heads), 1, heads.shape[2] // 2, dtype=heads.dtype)
    return chosen.attend(heads, (angles.cos(), angles.sin()), plan, cache, 0, window)


def test_single_tokens_and_chunks_go_to_kernels_of_their_own():
    spans = [Span(1, 3, [5]), Span(1, 6, [7, 2]), Span(4, 4, [1])]
    plan = plan_attention(spans, BLOCK, frozenset({None}), torch.zeros(1), "ragged")
    assert plan.ragged
    assert plan.ragged.contexts.tolist() == [3, 6]
    assert [row[:size] for row, size in zip(plan.ragged.blocks.tolist(), (1, 2), strict=True)] == [
        [5],
        [7, 2],
    ]
    assert [(each.rows, each.blocks.tolist()) for each in plan.chunks] == [(slice(2, 6), [1])]
    assert not plan.groups


def test_repeated_decodes_are_left_to_the_kernel_too():
    spans = [Span(1, 6, [7, 2]), Span(3, 5, [9, 4], as_decodes=True), Span(4, 4, [1])]
    plan = plan_attention(spans, BLOCK, frozenset({None}), torch.zeros(1), "ragged")
    assert plan.ragged
    assert plan.ragged.contexts.tolist() == [6, 3, 4, 5]
    assert plan.ragged.blocks.tolist() == [[7, 2], [9, 4], [9, 4], [9, 4]]
    assert [each.rows for each in plan.chunks] == [slice(4, 8)]


def test_plain_torch_gives_the_same_tokens(load, expected):
    engine = load("qwen3", compile_kernels=False)
    contexts = [engine.add(greedy(prompt, 12 + i)) for i, prompt in enumerate(prompts())]
    engine.run()
    for i, (context, prompt) in enumerate(zip(contexts, prompts(), strict=True)):
        assert engine.answers[context].tokens[0] == expected("qwen3", prompt, 12 + i)


def test_other_devices_and_dtypes_have_no_kernels():
    assert compiled_ops(torch.device("cuda"), torch.float32) is None
    assert compiled_ops(CPU, torch.float16) is None
