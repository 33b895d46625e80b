"""Greedy output equals transformers token for token, however the batch looks."""

from __future__ import annotations

from random import Random

import pytest

from tests.torch_engine.tiny import FAMILIES, VOCAB, greedy

LENGTHS = (1, 2, 15, 16, 17, 33, 50)


def prompts(lengths=LENGTHS):
    random = Random(3)
    return [[random.randrange(2, VOCAB) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_alone_equals_transformers(family, load, expected):
    engine = load(family)
    for prompt in prompts((1, 16, 40)):
        assert engine.answer(greedy(prompt, 20)).tokens[0] == expected(family, prompt, 20)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_batch_equals_transformers(family, load, expected):
    engine = load(family)
    contexts = [engine.add(greedy(prompt, 12 + i)) for i, prompt in enumerate(prompts())]
    engine.run()
    for i, (context, prompt) in enumerate(zip(contexts, prompts(), strict=True)):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 12 + i)


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_chunks_and_late_arrivals_equal_transformers(family, load, expected):
    engine = load(family, max_num_batched_tokens=7, max_num_seqs=5, block_size=4)
    contexts = []
    for prompt in prompts():
        contexts.append(engine.add(greedy(prompt, 14)))
        engine.step()
    engine.run()
    for context, prompt in zip(contexts, prompts(), strict=True):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 14)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral"])
def test_preempted_sequences_equal_transformers(family, load, expected):
    engine = load(family, num_kv_blocks=20, block_size=4, max_model_len=70)
    contexts = [engine.add(greedy(prompt, 16)) for prompt in prompts((9, 17, 20, 14))]
    engine.run()
    assert engine.core.scheduler.num_preemptions > 0
    for context, prompt in zip(contexts, prompts((9, 17, 20, 14)), strict=True):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 16)


def test_blocks_behind_a_window_are_used_again_and_nobody_notices(load, expected):
    engine = load("mistral", num_kv_blocks=14, block_size=4, max_num_batched_tokens=8, max_model_len=56)
    asked = prompts((9, 17, 20, 14))
    contexts = [engine.add(greedy(prompt, 30, n=1 + i % 2)) for i, prompt in enumerate(asked)]
    engine.run()
    scheduler = engine.core.scheduler
    assert (scheduler.num_preemptions, scheduler.pool.num_used) == (0, 0)
    for context, prompt in zip(contexts, asked, strict=True):
        for tokens in engine.answers[context].tokens.values():
            assert tokens == expected("mistral", prompt, 30)


@pytest.mark.parametrize("num_kv_blocks", [5, 12])
def test_texts_longer_than_the_cache_equal_transformers_behind_a_window(num_kv_blocks, load, expected):
    engine = load("mistral", num_kv_blocks=num_kv_blocks, block_size=4, max_num_batched_tokens=8)
    asked = prompts((90, 30, 61))
    assert engine.core.scheduler.pool.capacity < 61
    for _ in range(2):  # the second time some of it is cached
        contexts = [engine.add(greedy(prompt, 20)) for prompt in asked]
        engine.run()
        for context, prompt in zip(contexts, asked, strict=True):
            assert engine.answers[context].tokens[0] == expected("mistral", prompt, 20)


def test_a_preempted_sequence_that_has_given_blocks_back_equals_transformers(load, expected):
    engine = load("mistral", block_size=4, max_num_batched_tokens=16)
    prompt = prompts((33,))[0]
    context = engine.add(greedy(prompt, 20))
    for _ in range(10):
        engine.step()
    (sequence,) = engine.core.scheduler.running
    assert sequence.num_released_blocks > 0
    engine.core.scheduler._preempt(sequence)
    engine.run()
    assert engine.answers[context].tokens[0] == expected("mistral", prompt, 20)


def test_every_greedy_choice_of_a_request_is_the_same(load, expected):
    engine = load("llama")
    prompt = prompts((21,))[0]
    answer = engine.answer(greedy(prompt, 9, n=3))
    assert dict(answer.tokens) == {i: expected("llama", prompt, 9) for i in range(3)}
    assert [t.HasField("completion_usage") for t in answer.terminals] == [False, False, True]
    assert answer.terminals[-1].completion_usage.completion_tokens == 27
