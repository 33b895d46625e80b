"""Which adapters are refused, and that each refusal is one line that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from enginewire.server.failures import AdapterLimit, InvalidRequest
from enginewire.torch_engine.loading.warm_up import LoadedEngine
from enginewire.torch_engine.lora import weights
from enginewire.torch_engine.lora.config import MAX_CONFIG_BYTES, read_files, read_lora_config
from enginewire.torch_engine.requests.adapter import Adapter
from tests.torch_engine.lora.folders import edit_config, edit_weights, make_adapter, read_adapter
from tests.torch_engine.tiny import CoreUnderTest

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"


@pytest.fixture(scope="session")
def pristine(tmp_path_factory, model_folder) -> Path:
    return make_adapter(model_folder("llama"), tmp_path_factory.mktemp("lora") / "a", 1, lora_alpha=8)


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    """A sound adapter of rank 4, to be spoiled."""
    return shutil.copytree(pristine, tmp_path / "a")


@pytest.fixture
def loaded(load: Callable[..., CoreUnderTest]) -> LoadedEngine:
    return load("llama", max_loras=1).loaded


def refusal(loaded: LoadedEngine, folder: Path) -> str:
    with pytest.raises(InvalidRequest) as refused:
        read_adapter(loaded, folder, "a")
    assert refused.value.field == "source"
    text = str(refused.value)
    assert "\n" not in text
    assert str(folder) not in text
    return text


def test_the_adapter_is_sound_before_it_is_spoiled(loaded, folder):
    assert isinstance(read_adapter(loaded, folder, "a"), Adapter)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bias": "all"}, "'bias' is not supported"),
        ({"use_dora": True}, "'use_dora' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is not supported"),
        ({"lora_bias": True}, "'lora_bias' is not supported"),
        ({"fan_in_fan_out": True}, "'fan_in_fan_out' is not supported"),
        ({"alora_invocation_tokens": [1]}, "'alora_invocation_tokens' is not supported"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices' is not supported"),
        ({"a_method_of_tomorrow": {"x": 1}}, "'a_method_of_tomorrow' is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' is not supported"),
        ({"peft_type": "IA3"}, "peft_type must be LORA, got 'IA3'"),
        ({"task_type": "SEQ_CLS"}, "task_type must be CAUSAL_LM"),
        ({"r": 17}, "the rank must be from 1 to 16, got 17"),
        ({"r": 0}, "the rank must be from 1 to 16, got 0"),
        ({"r": True}, "the rank must be from 1 to 16"),
        ({"rank_pattern": {"q_proj": 99}}, "the rank must be from 1 to 16, got 99"),
        ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern must hold plain names of modules"),
        ({"rank_pattern": {"q_proj|k_proj": 4}}, "rank_pattern must hold plain names of modules"),
        ({"rank_pattern": {f"m{i}": 4 for i in range(1025)}}, "rank_pattern must map at most 1024"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern must map"),
        ({"alpha_pattern": {"q_proj": None}}, "lora_alpha must be a number"),
        ({"lora_alpha": "8"}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"lora_alpha": 1e300}, "lora_alpha must be a number"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
    ],
)
def test_what_the_configuration_may_not_say(loaded, folder, fields, reason):
    edit_config(folder, **fields)
    assert refusal(loaded, folder).startswith(f"source: {CONFIG}: {reason}")


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"r": NaN, "peft_type": "LORA"}'])
def test_a_configuration_that_is_no_json_object(loaded, folder, content):
    (folder / CONFIG).write_text(content)
    assert refusal(loaded, folder).startswith(f"source: {CONFIG}: ")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_is_missing(loaded, folder, name):
    (folder / name).unlink()
    assert refusal(loaded, folder) == f"source: {name}: is missing"


def test_files_that_are_too_large(loaded, folder):
    (folder / CONFIG).write_text(json.dumps({"r": 4, "x": "y" * MAX_CONFIG_BYTES}))
    assert "adapter_config.json: is too large" in refusal(loaded, folder)
    (folder / CONFIG).write_text("{}")
    with pytest.raises(InvalidRequest, match=r"adapter_model.safetensors: is too large, allowed 0..100"):
        read_files(folder, 100)
    with (folder / WEIGHTS).open("wb") as file:
        file.truncate(2**43)  # takes no room on the disk, but would not fit into memory
    with pytest.raises(InvalidRequest, match=r"adapter_model.safetensors: is too large, allowed 0..100"):
        read_files(folder, 100)


def drop(name: str, tensors: dict[str, torch.Tensor]) -> None:
    del tensors[name]


def put(name: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
    tensors[name] = tensor


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (partial(drop, B), "has only one of lora_A and lora_B"),
        (dict.clear, "holds no tensors"),
        (partial(put, A, torch.ones(4, 31)), "has the shape [4, 31], expected [4, 32]"),
        (partial(put, A, torch.ones(5, 32)), "has the shape [5, 32], expected [4, 32]"),
        (partial(put, B, torch.ones(32)), "has the shape [32], expected [32, 4]"),
        (partial(put, A, torch.full((4, 32), float("nan"))), "must hold finite floats"),
        (partial(put, A, torch.ones(4, 32, dtype=torch.int64)), "must hold finite floats"),
        (partial(put, "lm_head.weight", torch.ones(2)), "'lm_head.weight' is neither lora_A nor lora_B"),
        (
            lambda tensors: tensors.update({name.replace(".0.", ".9."): torch.ones(4, 4) for name in (A, B)}),
            "'model.layers.9.self_attn.q_proj' is no projection",
        ),
    ],
)
def test_what_the_weights_may_not_be(loaded, folder, change, reason):
    edit_weights(folder, change)
    text = refusal(loaded, folder)
    assert text.startswith(f"source: {WEIGHTS}: ")
    assert reason in text


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"\xff" * 64, b"{" * 1000])
def test_weights_that_are_no_safetensors_file(loaded, folder, content):
    (folder / WEIGHTS).write_bytes(content)
    assert refusal(loaded, folder) == f"source: {WEIGHTS}: is not a usable safetensors file"


def test_an_adapter_that_the_device_has_no_memory_for(loaded, folder, monkeypatch):
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(weights, "_stored", fail)
    with pytest.raises(AdapterLimit, match="no memory for one more adapter"):
        read_adapter(loaded, folder, "a")


def test_pickled_weights_are_never_looked_at(loaded, folder):
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    assert refusal(loaded, folder) == f"source: {WEIGHTS}: is missing"


def test_a_pattern_is_a_name_its_end_or_the_whole_with_a_hat():
    fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": True}
    fields["rank_pattern"] = {"^model.x": 1, "layers.1.q": 2, "q": 3}
    config = read_lora_config(json.dumps(fields).encode(), 8)
    ranks = {"model.x": 1, "a.model.x": 4, "layers.1.q": 2, "m.layers.1.q": 2, "layers.11.q": 3, "qq": 4}
    assert {name: config.rank_of(name) for name in ranks} == ranks
    assert config.scale_of("layers.11.q") == 8 / 3**0.5
