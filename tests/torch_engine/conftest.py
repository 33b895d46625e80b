"""Folders of tiny random models, transformers as the oracle, and engines that load them."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
import transformers

from enginewire.torch_engine.loading import load as loading
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.server.conftest import engine_server
from tests.torch_engine.tiny import CONFIGS, CoreUnderTest

__all__ = ["engine_server"]

# Tiny models: more threads only wait for each other, above all when tests run side by side.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's random model, made once."""
    root = tmp_path_factory.mktemp("models")

    @lru_cache
    def make(family: str) -> Path:
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]())
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # else zeros and ones hide a mistake
                torch.nn.init.normal_(parameter, mean="norm" in name, std=0.3)
        model.save_pretrained(root / family)
        return root / family

    return make


@pytest.fixture(scope="session")
def oracle(model_folder: Callable[[str], Path]) -> Callable[[str], transformers.PreTrainedModel]:
    """The same model in transformers."""
    return lru_cache(
        lambda family: transformers.AutoModelForCausalLM.from_pretrained(model_folder(family)).eval()
    )


@pytest.fixture(scope="session")
def expected(
    oracle: Callable[[str], transformers.PreTrainedModel],
) -> Callable[[str, Seq[int], int], list[int]]:
    """Greedy output of transformers, without stopping at EOS; asked once, however often a test wants it."""

    @cache
    def generate(family: str, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        limits = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens}
        model = oracle(family)
        model.generation_config.eos_token_id = None
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **limits
        )
        return tuple(made[0, len(prompt) :].tolist())

    return lambda family, prompt, max_tokens: list(generate(family, tuple(prompt), max_tokens))


@pytest.fixture
def load(model_folder: Callable[[str], Path]) -> Callable[..., CoreUnderTest]:
    """Load a family in float32 on the CPU with further engine options."""

    def make(family: str = "llama", **options: object) -> CoreUnderTest:
        defaults = {"device": "cpu", "dtype": "float32", "max_num_seqs": 8, "num_threads": 1}
        chosen = TorchEngineOptions(model=str(model_folder(family)), **{**defaults, **options})
        loaded = load_engine(chosen, lambda phase, done: None)
        return CoreUnderTest(loaded, prefix_caching=chosen.enable_prefix_caching)

    return make


@pytest.fixture
def far(load: Callable[..., CoreUnderTest], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CoreUnderTest]:
    """`load` an engine that believes its device to be far away."""

    def make(family: str = "llama", **options: object) -> CoreUnderTest:
        with monkeypatch.context() as patch:
            patch.setattr(loading, "is_far", lambda device: True)
            return load(family, **options)

    return make
