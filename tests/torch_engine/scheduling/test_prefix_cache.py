"""A cached prefix changes how much is computed, never what comes out."""

from __future__ import annotations

from random import Random

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import StepFailed
from enginewire.torch_engine.requests.cache_chain import chain_root
from enginewire.torch_engine.scheduling.prefix_cache import public_hash
from tests.long import long_but
from tests.torch_engine.scheduling.replica import Replica
from tests.torch_engine.tiny import FAMILIES, VOCAB, CoreUnderTest, greedy

SIZE = 4


def prompt(length: int, seed: int = 3) -> list[int]:
    random = Random(seed)
    return [random.randrange(2, VOCAB) for _ in range(length)]


def cached(answer) -> int:
    return answer.terminals[-1].completion_usage.prompt_tokens_details.cached_tokens


def hashes(engine: CoreUnderTest) -> set[int]:
    return {public_hash(digest) for digest in engine.core.scheduler.prefix_cache._blocks}


@pytest.fixture
def engine(load):
    return load("llama", block_size=SIZE)


@pytest.mark.parametrize("family", long_but(["llama", "mistral"], FAMILIES))
@pytest.mark.parametrize("tokens_per_step", [None, 9])
def test_output_with_hits_equals_transformers(family, tokens_per_step, load, expected):
    engine = load(family, block_size=SIZE, max_num_batched_tokens=tokens_per_step)
    whole = prompt(30)
    engine.answer(greedy(whole, 10))
    for length in (30, 29, 28, 17, 4, 1):
        answer = engine.answer(greedy(whole[:length], 12))
        assert answer.tokens[0] == expected(family, whole[:length], 12)
        assert cached(answer) == (length - 1) // SIZE * SIZE


@pytest.mark.parametrize("family", long_but(["llama", "mistral"], FAMILIES))
def test_shared_prefixes_under_pressure_equal_transformers(family, load, expected):
    engine = load(family, num_kv_blocks=24, block_size=SIZE, max_model_len=80, max_num_batched_tokens=11)
    prompts = [prompt(21)[: 21 - 3 * i] + prompt(6 * i, seed=i) for i in range(5)] * 2
    contexts = []
    for each in prompts:
        contexts.append(engine.add(greedy(each, 14)))
        engine.step()
    engine.preempt_one()
    engine.run()
    scheduler = engine.core.scheduler
    assert scheduler.num_preemptions > (0 if scheduler.window else 1)
    for context, each in zip(contexts, prompts, strict=True):
        assert engine.answers[context].tokens[0] == expected(family, each, 14)


def test_an_answer_is_found_again_as_part_of_the_next_prompt(engine, expected):
    first = engine.answer(greedy(prompt(10), 15))
    following = prompt(10) + first.tokens[0] + [7, 8]
    answer = engine.answer(greedy(following, 6))
    assert answer.tokens[0] == expected("llama", following, 6)
    assert cached(answer) == 24 // SIZE * SIZE, "the last token of an answer is never computed"


def test_equal_prompts_at_the_same_time_end_up_in_the_same_blocks(engine, expected):
    contexts = [engine.add(greedy(prompt(17), 9)) for _ in range(3)]
    engine.step()
    tables = [sequence.block_table[:4] for sequence in engine.core.scheduler.running]
    assert tables[0] == tables[1] == tables[2]
    engine.run()
    for context in contexts:
        assert engine.answers[context].tokens[0] == expected("llama", prompt(17), 9)


def test_a_salt_separates_and_bypass_and_probes_leave_nothing_behind(engine):
    request = greedy(prompt(16), 3)
    private = greedy(prompt(16), 3)
    private.cache_salt = "tenant"
    bypass = greedy(prompt(16, seed=9), 3)
    bypass.bypass_prefix_cache = True
    probe = pb.PreprocessedRequest(token_ids=prompt(16, seed=8), is_probe=True)
    for stranger in (bypass, bypass, probe, probe):
        assert cached(engine.answer(stranger)) == 0
        assert engine.core.scheduler.pool.num_cached == 0
        assert engine.core.scheduler.prefix_cache.take_changes() == []
    assert [cached(engine.answer(each)) for each in (request, private, request, private)] == [0, 0, 12, 12]
    known = greedy(prompt(16), 3)
    known.bypass_prefix_cache = True
    assert cached(engine.answer(known)) == 0


def test_with_the_cache_switched_off_nothing_is_kept(engine):
    engine.reader._limits = type(engine.reader._limits)(199, 256, 4096, prefix_caching=False)
    assert [cached(engine.answer(greedy(prompt(16), 3))) for _ in range(2)] == [0, 0]
    assert engine.core.scheduler.pool.num_cached == 0


def test_a_chain_depends_on_everything_before_a_block_and_on_the_salt(engine):
    def stored(tokens: list[int], salt: str = "") -> set[int]:
        engine.core.scheduler.prefix_cache.reset()
        request = greedy(tokens, 1)
        request.cache_salt = salt
        engine.answer(request)
        return hashes(engine)

    one = stored(prompt(12))
    assert len(one) == 3
    assert stored(prompt(12)) == one
    assert len(stored(prompt(8) + [5] * 4) & one) == 2
    assert stored([5, *prompt(12)[1:]]) & one == set()
    assert stored(prompt(12), "s") & one == set()
    assert chain_root("a", "b") != chain_root("ab") != chain_root("", "ab")


def test_a_poisoned_prompt_is_not_found_by_the_next_request(engine, expected):
    embedding = engine.loaded.core._runner.model.embedding
    poisoned = [*prompt(10), 77, *prompt(9)]
    healthy = embedding[77].clone()
    embedding[77] = float("nan")
    failed = engine.answer(greedy(poisoned, 4))
    assert isinstance(failed.error, StepFailed)
    embedding[77] = healthy
    answer = engine.answer(greedy(poisoned, 4))
    assert answer.tokens[0] == expected("llama", poisoned, 4)
    assert cached(answer) == 0


def test_poison_in_chunks_does_not_reach_those_who_share_the_healthy_part(load, expected):
    engine = load("llama", block_size=SIZE, max_num_batched_tokens=8)
    engine.loaded.core._runner.model.embedding[77] = float("nan")
    good = engine.add(greedy(prompt(12), 30))
    bad = engine.add(greedy([*prompt(12), 77, *prompt(20)], 4))
    engine.run()
    assert isinstance(engine.answers[bad].error, StepFailed)
    assert engine.answers[good].tokens[0] == expected("llama", prompt(12), 30)
    following = engine.answer(greedy([*prompt(12), 9], 8))
    assert following.tokens[0] == expected("llama", [*prompt(12), 9], 8)


def test_replayed_changes_are_the_cache_after_random_traffic(load):
    engine = load("qwen3", num_kv_blocks=20, block_size=SIZE, max_model_len=64, max_num_batched_tokens=11)
    random, replica = Random(1), Replica(SIZE)
    for _ in range(60):
        start = prompt(random.randrange(1, 30), seed=random.randrange(3))
        context = engine.add(greedy(start, random.randrange(1, 20), n=random.randrange(1, 4)))
        engine.step()
        if random.random() < 0.25:
            engine.core.live.abort(context)
        if random.random() < 0.1:
            engine.core.scheduler.prefix_cache.reset()
        replica.apply(engine.core.scheduler.prefix_cache.take_changes())
        assert set(replica.tokens) == hashes(engine)
    engine.run()
    replica.apply(engine.core.scheduler.prefix_cache.take_changes())
    assert set(replica.tokens) == hashes(engine)
    assert len(replica.tokens) == engine.core.scheduler.pool.num_cached > 0


def test_lookups_are_counted_in_tokens_once_per_sequence(engine):
    cache = engine.core.scheduler.prefix_cache
    whole = prompt(30)
    engine.answer(greedy(whole, 2))
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (30, 0)
    context = engine.add(greedy(whole, 8))
    engine.step()
    engine.preempt_one()
    engine.run()
    assert cached(engine.answers[context]) == 28
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (60, 28)
    outside = greedy(whole, 2)
    outside.bypass_prefix_cache = True
    engine.answer(outside)
    assert cache.num_queried_tokens == 60
