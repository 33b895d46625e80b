"""A cache of smaller numbers: more tokens in the same memory, and answers over what is rounded."""

from __future__ import annotations

import pytest
import torch
import transformers

from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.long import long_but
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


@pytest.mark.parametrize(
    ("source", "name", "times"),
    [
        ("load", "bfloat16", 2),
        ("load_generic", "bfloat16", 2),
        # Keys and values of 8 numbers here, of 16 and 12 there, each with the four bytes of its scale.
        ("load", "int8_per_token_head", 4 * 8 / 12),
        ("load_generic", "int8_per_token_head", 4 * (16 + 12) / (16 + 12 + 2 * 4)),
    ],
)
def test_the_same_memory_holds_as_many_more_tokens(source, name, times, request):
    load = request.getfixturevalue(source)
    plain, smaller = (
        load(kv_cache_dtype=each, kv_cache_memory_bytes=MEMORY, block_size=1, max_num_seqs=64)
        for each in ("auto", name)
    )
    for engine in (plain, smaller):
        cache = engine.core._runner.cache
        used = sum(stored.nbytes for stored in (*cache.keys, *cache.values))
        assert 0.99 * MEMORY < used <= MEMORY
        assert engine.config.total_kv_blocks == engine.core.scheduler.pool.num_blocks
    assert smaller.config.total_kv_blocks / plain.config.total_kv_blocks == pytest.approx(times, rel=0.01)


def in_eight_bits(heads: torch.Tensor) -> torch.Tensor:
    sizes = heads.abs().amax(-1, keepdim=True) / 127
    return (heads / sizes).round() * sizes


ROUNDINGS = {"bfloat16": lambda heads: heads.bfloat16().float(), "int8_per_token_head": in_eight_bits}


class RoundingCache(transformers.DynamicCache):
    """The cache of transformers, with keys and values as ours holds them."""

    def __init__(self, rounding: str, network: transformers.PreTrainedModel) -> None:
        super().__init__(config=network.config)
        self.rounded = ROUNDINGS[rounding]

    def update(self, key_states, value_states, *place, **options):
        return super().update(self.rounded(key_states), self.rounded(value_states), *place, **options)


@pytest.mark.parametrize("compile_kernels", [True, False])
@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize("family", long_but(["mistral"], ["llama", "mistral"]))
def test_a_crowd_gets_the_tokens_of_transformers_over_rounded_keys(
    family, name, compile_kernels, load, oracle
):
    engine, network = load(family, kv_cache_dtype=name, compile_kernels=compile_kernels), oracle(family)
    network.generation_config.eos_token_id = None
    contexts = [engine.add(greedy(prompt, 9)) for prompt in prompts()]
    engine.run()
    assert engine.num_failed_batches == 0
    for context, prompt in zip(contexts, prompts(), strict=True):
        ids, cache = torch.tensor([prompt]), RoundingCache(name, network)
        made = network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            do_sample=False,
            max_new_tokens=9,
            pad_token_id=0,
        )
        assert engine.answers[context].tokens[0] == made[0, len(prompt) :].tolist()
