"""A cache of smaller numbers holds the nearest ones, and attention over them is exact."""

from __future__ import annotations

from random import Random

import pytest
import torch

from enginewire.torch_engine.layers.attention import KvTensors, Span, plan_attention
from enginewire.torch_engine.layers.compiled_ops import compiled_ops
from enginewire.torch_engine.layers.ops import LayerOps, TorchOps

BLOCK, NUM_BLOCKS = 4, 200
CPU = torch.device("cpu")


def chosen_ops(cached: torch.dtype, *, compiled: bool) -> LayerOps:
    return (compiled_ops(CPU, torch.float32, cached=cached) if compiled else None) or TorchOps()


def drawn_spans(random: Random) -> list[Span]:
    """Decodes by length, then chunks, in blocks that lie anywhere."""
    free = random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    decodes = sorted(random.randint(1, 90) for _ in range(random.randint(1, 4)))
    chunks = [(random.randint(2, 50), random.randint(0, 60)) for _ in range(random.randint(0, 2))]
    sizes = [(1, context) for context in decodes] + [(new, new + before) for new, before in chunks]
    return [Span(new, context, [free.pop() for _ in range(-(-context // BLOCK))]) for new, context in sizes]


def slots_of(span: Span) -> torch.Tensor:
    return torch.tensor([span.block_table[p // BLOCK] * BLOCK + p % BLOCK for p in range(span.context)])


def exact(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int) -> torch.Tensor:
    """Attention of one query [heads, dim] over tokens from `first` on, in double precision."""
    shared = len(query) // keys.shape[1]
    keys, values = (each[first:].repeat_interleave(shared, dim=1) for each in (keys, values))
    scores = torch.einsum("hd,thd->ht", query, keys) / query.shape[1] ** 0.5
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("cached", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("number", range(8))
def test_a_step_is_exact_over_what_the_cache_holds(number, cached, compiled):
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    kv_heads, shared, dim = (random.choice(sizes) for sizes in ([1, 2, 3], [1, 2, 5], [8, 12, 64, 128]))
    window, spans = random.choice([None, 5, 40]), drawn_spans(random)
    chosen = chosen_ops(cached, compiled=compiled)
    like = torch.zeros(1)
    cache = KvTensors(1, (NUM_BLOCKS, BLOCK, kv_heads, dim), like, cached)
    everywhere = torch.full((NUM_BLOCKS * BLOCK, kv_heads, dim), float("nan"))
    cache.write(0, torch.arange(len(everywhere)), everywhere, everywhere)
    for span in spans:
        cache.clear(span.block_table)
        before = slots_of(span)[: span.context - span.num_new]
        if len(before):
            cache.write(0, before, *torch.randn(2, len(before), kv_heads, dim, generator=generator))
    rows = sum(span.num_new for span in spans)
    heads = torch.randn(rows, (shared + 2) * kv_heads, dim, generator=generator)
    angles = torch.randn(rows, 1, dim // 2, generator=generator)
    turned, values = rotated(heads, angles, kv_heads)
    plan = plan_attention(spans, BLOCK, frozenset({window}), like, chosen.reading)
    found = chosen.attend(heads, (angles.cos(), angles.sin()), plan, cache, 0, window).view(rows, -1, dim)
    row = 0
    for span in spans:
        held = [held_numbers(stored, slots_of(span)) for stored in (cache.keys[0], cache.values[0])]
        new = slice(row, row + span.num_new)
        for numbers, wanted in zip(held, (turned[new, -kv_heads:], values[new]), strict=True):
            assert_nearest(numbers[span.context - span.num_new :], wanted, cached)
        for context in range(span.context - span.num_new + 1, span.context + 1):
            keys, seen = (numbers[:context] for numbers in held)
            first = 0 if window is None else max(context - window, 0)
            wanted = exact(turned[row, :-kv_heads], keys, seen, first)
            torch.testing.assert_close(found[row].double(), wanted, rtol=1e-5, atol=1e-5)
            row += 1


def rotated(heads: torch.Tensor, angles: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Turned queries and keys, and the values, in double precision."""
    first, second = heads[:, :-kv_heads].double().chunk(2, dim=-1)
    cos, sin = angles.cos().double(), angles.sin().double()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned, heads[:, -kv_heads:].double()


def held_numbers(stored: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """In double precision; 8-bit steps lie before the four bytes of what a step is worth."""
    numbers = stored.flatten(0, 1)[slots]
    if stored.dtype != torch.int8:
        return numbers.double()
    return numbers[..., :-4].double() * numbers[..., -4:].clone().view(torch.float32)


def assert_nearest(held: torch.Tensor, wanted: torch.Tensor, cached: torch.dtype) -> None:
    """Half a step away at most; a little more, as what is rounded was computed in float32."""
    largest = wanted.abs().amax(-1, keepdim=True)
    half_step = largest / 127 / 2 if cached == torch.int8 else wanted.abs() * 2**-8
    assert ((held - wanted).abs() <= half_step + 1e-6).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("fault", [float("nan"), float("inf"), float("-inf")])
def test_a_head_that_cannot_be_rounded_is_told_and_one_of_zeros_stays(fault, compiled):
    heads = torch.zeros(2, 3, 8)
    heads[0, 2, 5] = fault
    cache = KvTensors(1, (1, BLOCK, 1, 8), heads, torch.int8)
    cache.clear([0])
    chosen, span = chosen_ops(torch.int8, compiled=compiled), Span(2, 2, [0])
    plan = plan_attention([span], BLOCK, frozenset({None}), heads, chosen.reading)
    found = chosen.attend(heads, (torch.ones(2, 1, 4), torch.zeros(2, 1, 4)), plan, cache, 0, None)
    assert not found.isfinite().any(), "both queries have seen that value"
    assert (held_numbers(cache.keys[0], slots_of(span)) == 0).all()
