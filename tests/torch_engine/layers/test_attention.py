"""Paged attention equals attention over plain tensors, and never looks into foreign blocks."""

from __future__ import annotations

import pytest
import torch

from enginewire.torch_engine.layers.attention import KvTensors, Span, attend, plan_attention

BLOCK, HEADS, KV_HEADS, DIM = 4, 6, 2, 8


def reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Attention of the last queries over [context, kv_heads, dim], one head at a time."""
    context, new = len(keys), len(query)
    result = torch.empty_like(query)
    for row in range(new):
        last = context - new + row + 1
        first = 0 if window is None else max(last - window, 0)
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = keys[first:last, group] @ query[row, head] / DIM**0.5
            result[row, head] = scores.softmax(0) @ values[first:last, group]
    return result


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_mixed_step_equals_plain_attention_and_ignores_foreign_blocks(window, dtype, tolerance):
    torch.manual_seed(0)
    like = torch.zeros(1, dtype=dtype)
    contexts, news = [4, 6, 9, 40, 11, 3], [1, 1, 1, 1, 7, 3]
    cache = KvTensors(1, (32, BLOCK, KV_HEADS, DIM), like)
    cache._storage.fill_(float("nan"))
    free = list(range(31, 0, -1))
    spans, queries, expected = [], [], []
    for context, new in zip(contexts, news, strict=True):
        table = [free.pop() for _ in range(-(-context // BLOCK))]
        keys, values = torch.randn(2, context, KV_HEADS, DIM).to(dtype)
        query = torch.randn(new, HEADS, DIM).to(dtype)
        cache.clear(table)
        slots = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)])
        cache.write(0, slots, keys, values)
        spans.append(Span(new, context, table))
        queries.append(query)
        expected.append(reference(query.float(), keys.float(), values.float(), window))
    plan = plan_attention(spans, BLOCK, frozenset({window}), like)
    flat = torch.cat(queries)
    found = torch.cat([attend(flat[group.rows], cache, 0, group, window) for group in plan.groups])
    assert len(plan.groups) < len(spans), "decodes of similar length share a group"
    torch.testing.assert_close(found.float(), torch.cat(expected), rtol=tolerance, atol=tolerance)


def test_new_tokens_are_written_behind_the_context():
    spans = [Span(1, 6, [3, 5]), Span(3, 3, [7])]
    plan = plan_attention(spans, BLOCK, frozenset({None}), torch.zeros(1))
    assert plan.slots.tolist() == [21, 28, 29, 30]
