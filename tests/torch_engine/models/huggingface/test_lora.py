"""Adapters on models of transformers: equal to peft, or refused at start."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from enginewire.server.failures import InvalidRequest
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.long import long_but
from tests.torch_engine.lora.folders import ATTENTION, make_adapter, peft_greedy, read_adapter
from tests.torch_engine.models.huggingface.wide_models import save_wide
from tests.torch_engine.tiny import VOCAB, CoreUnderTest, greedy

TARGETS = {
    "gemma2": "all-linear",
    "gemma4_text": ("q_proj", "o_proj"),
    "phi3": "all-linear",
    "gpt_neox": "all-linear",
    "deepseek_v3": ("q_a_proj", "kv_b_proj", "o_proj"),
    "qwen2_moe": (*ATTENTION, "shared_expert.down_proj"),
    "mixtral": ATTENTION,
}
LENGTHS = (9, 1, 21, 14)
MAX_TOKENS = 10


def build(model_type: str, folder: Path) -> Path:
    save_wide(folder, model_type)
    return folder


def load(base: Path) -> CoreUnderTest:
    options = TorchEngineOptions(
        model=str(base), device="cpu", dtype="float32", num_threads=1, max_loras=2, block_size=4
    )
    return CoreUnderTest(load_engine(options, lambda phase, done: None))


@pytest.mark.parametrize("model_type", long_but(["deepseek_v3", "gemma2", "phi3"], TARGETS))
def test_a_mixed_batch_equals_peft(model_type, tmp_path):
    base = build(model_type, tmp_path / "base")
    engine, oracles = load(base), {}
    for seed, name in enumerate("AB"):
        folder = make_adapter(base, tmp_path / name, seed, TARGETS[model_type], lora_alpha=8)
        engine.adapters[name] = read_adapter(engine.loaded, folder, name)
        oracles[name] = peft_greedy(base, folder)
    random, asked = Random(3), {}
    for length, name in zip(LENGTHS, ("A", "B", None, "A"), strict=True):
        prompt = [random.randrange(2, VOCAB) for _ in range(length)]
        asked[engine.add(greedy(prompt, MAX_TOKENS), adapter=name)] = name, prompt
    engine.run()
    for context, (name, prompt) in asked.items():
        tokens = engine.answers[context].tokens[0]
        assert len(tokens) == MAX_TOKENS
        if name:
            assert tokens == oracles[name](prompt, MAX_TOKENS)
        else:
            assert tokens == load(base).answer(greedy(prompt, MAX_TOKENS)).tokens[0]


def test_a_model_without_such_layers_serves_no_adapters(tmp_path):
    with pytest.raises(ModelLoadError, match="none of its layers can be changed by adapters"):
        load(build("gpt2", tmp_path))


def test_the_head_which_sees_only_the_last_tokens_is_not_changed(tmp_path):
    base = build("qwen2_moe", tmp_path / "base")
    folder = make_adapter(base, tmp_path / "A", 0, ["lm_head"])
    loaded = load(base).loaded
    assert not any("lm_head" in name or "experts" in name for name in loaded.adapted.parts)
    with pytest.raises(InvalidRequest, match="lm_head"):
        read_adapter(loaded, folder, "A")
