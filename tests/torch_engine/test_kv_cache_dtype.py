"""A cache of smaller numbers: more tokens in the same memory, and answers over what is rounded."""

from __future__ import annotations

import pytest
import torch
import transformers

from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.models.huggingface.configs import SERVED, tiny_config
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import CoreUnderTest, greedy

MEMORY = 100_000


@pytest.fixture
def load_generic(tmp_path):
    """Load a model of transformers whose keys and values differ in size."""
    torch.manual_seed(5)
    network = transformers.AutoModelForCausalLM.from_config(tiny_config("deepseek_v3", SERVED["deepseek_v3"]))
    network.save_pretrained(tmp_path)

    def make(**options: object) -> CoreUnderTest:
        given = {"device": "cpu", "dtype": "float32", "max_num_seqs": 8, "num_threads": 1, **options}
        chosen = TorchEngineOptions(model=str(tmp_path), **given)
        return CoreUnderTest(load_engine(chosen, lambda phase, done: None))

    return make


@pytest.mark.parametrize("source", ["load", "load_generic"])
def test_the_same_memory_holds_as_many_more_tokens(source, request):
    load = request.getfixturevalue(source)
    plain, smaller = (
        load(kv_cache_dtype=name, kv_cache_memory_bytes=MEMORY, block_size=1, max_num_seqs=64)
        for name in ("auto", "bfloat16")
    )
    for engine in (plain, smaller):
        cache = engine.core._runner.cache
        used = sum(stored.nbytes for stored in (*cache.keys, *cache.values))
        assert 0.99 * MEMORY < used <= MEMORY
        assert engine.config.total_kv_blocks == engine.core.scheduler.pool.num_blocks
    assert smaller.config.total_kv_blocks / plain.config.total_kv_blocks == pytest.approx(2, rel=0.01)


class RoundingCache(transformers.DynamicCache):
    """The cache of transformers, with keys and values as ours holds them."""

    def update(self, key_states, value_states, *place, **options):
        rounded = [states.bfloat16().float() for states in (key_states, value_states)]
        return super().update(*rounded, *place, **options)


@pytest.mark.parametrize("compile_kernels", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_crowd_gets_the_tokens_of_transformers_over_rounded_keys(family, compile_kernels, load, oracle):
    engine, network = load(family, kv_cache_dtype="bfloat16", compile_kernels=compile_kernels), oracle(family)
    network.generation_config.eos_token_id = None
    contexts = [engine.add(greedy(prompt, 9)) for prompt in prompts()]
    engine.run()
    assert engine.num_failed_batches == 0
    for context, prompt in zip(contexts, prompts(), strict=True):
        ids, cache = torch.tensor([prompt]), RoundingCache(config=network.config)
        made = network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            do_sample=False,
            max_new_tokens=9,
            pad_token_id=0,
        )
        assert engine.answers[context].tokens[0] == made[0, len(prompt) :].tolist()
