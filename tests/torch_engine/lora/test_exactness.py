"""Greedy output with adapters equals peft token for token, however the batch looks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from random import Random

import pytest

from tests.long import long_but
from tests.torch_engine.lora.folders import ATTENTION, make_adapter, peft_greedy, read_adapter
from tests.torch_engine.tiny import VOCAB, CoreUnderTest, greedy

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
KINDS = {
    "A": {"r": 4, "lora_alpha": 16},
    "B": {"r": 8, "lora_alpha": 8, "use_rslora": True},
    "C": {
        "r": 3,
        "lora_alpha": 6,
        "target_modules": (*ATTENTION[:2], "down_proj"),
        "rank_pattern": {"layers.1.self_attn.q_proj": 7, "down_proj": 2},
        "alpha_pattern": {"k_proj": 12},
    },
}
Oracle = Callable[[str, "str | None", list[int], int], list[int]]


def prompts(lengths: tuple[int, ...] = (1, 2, 15, 16, 17, 33, 50)) -> list[list[int]]:
    random = Random(5)
    return [[random.randrange(2, VOCAB) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="session")
def adapter_folder(tmp_path_factory, model_folder) -> Callable[[str, str], Path]:
    root = tmp_path_factory.mktemp("adapters")

    @lru_cache
    def make(family: str, kind: str) -> Path:
        return make_adapter(
            model_folder(family), root / f"{family}-{kind}", seed=sum(map(ord, kind)), **KINDS[kind]
        )

    return make


@pytest.fixture(scope="session")
def wanted(expected, model_folder, adapter_folder) -> Oracle:
    """Greedy output of peft with an adapter, of transformers without one."""
    oracle = cache(lambda family, kind: peft_greedy(model_folder(family), adapter_folder(family, kind)))
    answer = cache(lambda family, kind, prompt, most: tuple(oracle(family, kind)(list(prompt), most)))

    def generate(family: str, kind: str | None, prompt: list[int], max_tokens: int) -> list[int]:
        if kind is None:
            return expected(family, prompt, max_tokens)
        return list(answer(family, kind, tuple(prompt), max_tokens))

    return generate


@pytest.fixture
def load_with(load, adapter_folder) -> Callable[..., CoreUnderTest]:
    """An engine with all adapters of `KINDS`, which `add(…, adapter=name)` chooses."""

    def make(family: str, **options: object) -> CoreUnderTest:
        engine = load(family, max_loras=4, **options)
        for kind in KINDS:
            engine.adapters[kind] = read_adapter(engine.loaded, adapter_folder(family, kind), kind)
        return engine

    return make


def run_mixed(engine: CoreUnderTest, lengths: tuple[int, ...], max_tokens: int, *, late: bool = False):
    """Prompts of those lengths by turns with A, with no adapter, with B, with C and with A again."""
    asked = [
        (kind, prompt) for prompt, kind in zip(prompts(lengths), ("A", None, "B", "C", "A"), strict=False)
    ]
    contexts = []
    for kind, prompt in asked:
        contexts.append(engine.add(greedy(prompt, max_tokens), adapter=kind))
        if late:
            engine.step()
    engine.run()
    return [(*ask, engine.answers[context].tokens[0]) for ask, context in zip(asked, contexts, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", long_but(["llama"], FAMILIES))
def test_a_request_alone_equals_peft(family, kind, load_with, wanted):
    engine = load_with(family)
    for prompt in prompts((1, 16, 40)):
        answer = engine.answer(greedy(prompt, 20), adapter=kind)
        assert answer.tokens[0] == wanted(family, kind, prompt, 20)
        assert answer.tokens[0] != wanted(family, None, prompt, 20), "the adapter changes nothing"


@pytest.mark.parametrize("compile_kernels", [True, False])
@pytest.mark.parametrize("family", long_but(["llama", "qwen3"], FAMILIES))
def test_a_mixed_batch_equals_peft(family, compile_kernels, load_with, wanted):
    engine = load_with(family, compile_kernels=compile_kernels)
    for kind, prompt, tokens in run_mixed(engine, (2, 15, 33, 17, 50), 14):
        assert tokens == wanted(family, kind, prompt, 14)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_odd_chunks_and_late_arrivals_equal_peft(family, load_with, wanted):
    engine = load_with(family, max_num_batched_tokens=7, max_num_seqs=5, block_size=4)
    for kind, prompt, tokens in run_mixed(engine, (2, 15, 33, 17, 21), 14, late=True):
        assert tokens == wanted(family, kind, prompt, 14)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_preempted_sequences_equal_peft(family, load_with, wanted):
    engine = load_with(family, num_kv_blocks=20, block_size=4, max_model_len=70)
    answers = run_mixed(engine, (9, 17, 20, 14), 16)
    assert engine.core.scheduler.num_preemptions > 0
    for kind, prompt, tokens in answers:
        assert tokens == wanted(family, kind, prompt, 16)


def test_one_prompt_under_every_adapter_shares_no_block_and_stays_exact(load_with, wanted):
    engine = load_with("llama", block_size=4)
    prompt = prompts((30,))[0]
    for cached_tokens in (0, 28):
        for kind in ("A", "B", None, "C"):
            answer = engine.answer(greedy(prompt, 10), adapter=kind)
            assert answer.tokens[0] == wanted("llama", kind, prompt, 10)
            usage = answer.terminals[0].completion_usage
            assert usage.prompt_tokens_details.cached_tokens == cached_tokens
