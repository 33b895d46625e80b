"""Models of transformers: what is refused, in one line, and what is read from a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.models.huggingface.configs import REFUSED, SERVED, tiny_config
from tests.torch_engine.models.models_page import page
from tests.torch_engine.tiny import CoreUnderTest, greedy


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """The folder of a random model."""

    def make(model_type: str, **changes: object) -> Path:
        torch.manual_seed(5)
        config = tiny_config(model_type, {**SERVED[model_type], **changes})
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        return tmp_path

    return make


def load(folder: Path, **options: object) -> CoreUnderTest:
    values = {"model": str(folder), "device": "cpu", "num_threads": 1, "max_num_seqs": 4, **options}
    return CoreUnderTest(load_engine(TorchEngineOptions(**values), lambda phase, done: None))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as failure:
        load(folder)
    message = str(failure.value)
    assert "\n" not in message
    assert message.startswith(str(folder))
    return message


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_paged_attention_cannot_serve_is_refused_with_its_reason(model_type, tmp_path):
    refused = REFUSED[model_type]
    config = tiny_config(model_type, refused.changes)
    if refused.has_weights:
        torch.manual_seed(5)
        network = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.25)
        network.save_pretrained(tmp_path)
    else:  # refused by name: no weight is ever read
        architecture = (
            refused.architecture or transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__
        )
        (tmp_path / "config.json").write_text(
            json.dumps({**config.to_diff_dict(), "architectures": [architecture]})
        )
        (tmp_path / "model.safetensors").write_bytes(b"")
    assert f"is not supported ({refused.reason}" in refusal(tmp_path)


def test_an_encoder_is_refused(save):
    assert "is not supported" in refusal(save("bert", is_decoder=False))


def test_an_architecture_that_transformers_does_not_know(save):
    folder = save("gpt2")
    edit_config(folder, architectures=["GPT2Model"])
    assert "'GPT2Model' is not supported (no causal language model of transformers)" in refusal(folder)
    edit_config(folder, model_type="gpt9")
    assert "transformers cannot read it as model_type 'gpt9'" in refusal(folder)


def test_the_text_part_of_a_family_may_come_with_the_configuration_of_the_whole(save):
    folder = save("llama4")
    whole = tiny_config("llama4", SERVED["llama4"]).to_dict()
    (folder / "config.json").write_text(json.dumps({**whole, "architectures": ["Llama4ForCausalLM"]}))
    assert load(folder).loaded.context_length == 64


def test_what_transformers_cannot_build_is_refused_with_its_words(save, monkeypatch):
    def needs_a_library(*_: object, **__: object) -> None:
        raise ImportError("it requires the timm library")

    folder = save("gpt2")
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "__init__", needs_a_library)
    assert "transformers cannot load the model (ImportError: it requires the timm library)" in refusal(folder)
    monkeypatch.setattr(transformers.GPT2Config, "from_dict", needs_a_library)
    assert "model_type 'gpt2': ImportError: it requires the timm library" in refusal(folder)


def test_code_in_a_folder_is_never_run(save, tmp_path):
    folder, marker = save("gpt2"), tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    edit_config(folder, auto_map={"AutoConfig": "evil.E", "AutoModelForCausalLM": "evil.E"})
    load(folder)
    edit_config(folder, model_type="evil")
    assert "cannot read it" in refusal(folder)
    assert not marker.exists()


def test_quantised_weights_are_refused(save):
    folder = save("gpt2")
    edit_config(folder, quantization_config={"quant_method": "mxfp4"})
    assert "quantization_config: only unquantised weights are" in refusal(folder)


def test_quantisation_at_load_is_for_our_own_models(save):
    with pytest.raises(ModelLoadError, match="quantization int8 is not for models of transformers"):
        load(save("gpt2"), quantization="int8")


def test_pickled_weights_are_never_loaded(save):
    folder = save("gpt2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "no .safetensors file" in refusal(folder)


def test_a_missing_tensor_is_named_instead_of_made_up(save):
    folder = save("gpt2")
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "no weight file holds the tensor transformer.h.1.mlp.c_fc.weight" in refusal(folder)


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"", lambda data: b"\xff" * 99])
def test_a_damaged_weight_file(save, damage):
    folder = save("gpt2")
    file = folder / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert "transformers cannot load the model" in refusal(folder)


def test_weights_of_another_shape(save):
    folder = save("gpt2")
    edit_config(folder, n_inner=52)
    assert "transformers cannot load the model" in refusal(folder)


def test_the_context_ends_where_a_batch_would_change_the_answer(save):
    assert load(save("phi3")).loaded.context_length == 48
    assert load(save("llama4_text")).loaded.context_length == 64


def test_windows_and_shapes_are_seen_and_not_guessed(save):
    config = load(save("deepseek_v3", v_head_dim=12)).loaded.config
    assert sum(config.kv_sizes) == 2 * 4 * (8 + 8 + 12)
    assert load(save("mimo_v2_flash")).loaded.config.windows == (9, None)
    assert load(save("phimoe")).loaded.config.windows == (9, 9)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs(save, dtype):
    engine = load(save("gpt_oss"), dtype=dtype)
    assert len(engine.answer(greedy([4, 5, 6, 7], 5)).tokens[0]) == 5


def test_progress_goes_up_and_transformers_talks_again_afterwards(save):
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    seen: list[tuple[str, float]] = []
    folder = save("gpt2")
    load_engine(TorchEngineOptions(str(folder), device="cpu"), lambda phase, done: seen.append((phase, done)))
    loads = [done for phase, done in seen if phase == "load"]
    assert loads == sorted(loads)
    assert loads[-1] == 1.0
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())


def test_every_tested_name_is_an_architecture_of_transformers():
    assert set(SERVED) | set(REFUSED) <= set(transformers.CONFIG_MAPPING)
    assert not set(SERVED) & set(REFUSED)


def test_the_page_of_models_is_current():
    assert Path("docs/models.md").read_text() == page()
