"""GGUF files, written by the package `gguf` and held against what transformers reads in them."""

import importlib.util
import json
import sys
from types import ModuleType

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from enginewire.server.demo_model import PATH as DEMO
from enginewire.torch_engine.folder.config import read_model_config
from enginewire.torch_engine.folder.digest import model_digest
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.folder.generation_config import read_generation_defaults
from enginewire.torch_engine.folder.source import open_model
from enginewire.torch_engine.folder.weights import open_checkpoint
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.repository import ROOT
from tests.torch_engine.tiny import CoreUnderTest, greedy

SHAPE = {
    "vocab_size": 160,
    "hidden_size": 256,  # what a block of the K kinds has
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama3": lambda: LlamaConfig(**SHAPE, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SHAPE | {"head_dim": 128}),  # transformers reads no other of a file
}
KINDS = "q8_0,q4_0,q5_1,q4_k,q5_k,q6_k,q2_k,q3_k,bf16,f16"


@pytest.fixture(scope="module")
def make_gguf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_gguf", ROOT / ".ci/make/gguf_file.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def written(make_gguf, tmp_path):
    """`written(family, kinds)`: a random model's folder and a file of the same model."""

    def write(family, kinds="f32"):
        torch.manual_seed(1)
        folder, file = tmp_path / family, tmp_path / f"{family}.gguf"
        model = AutoModelForCausalLM.from_config(CONFIGS[family]())
        for name, parameter in model.named_parameters():  # which transformers begins with 0
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder)
        make_gguf.main(folder, file, kinds)
        return folder, file

    return write


def tensors_of(model, like):
    with open_checkpoint(model, torch.float32, torch.device("cpu")) as weights:
        return {name: weights.tensor(name, *tensor.shape) for name, tensor in like.items()}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_is_the_folder_it_was_made_of(written, family):
    folder, file = written(family)
    ours, theirs = open_model(str(file)), open_model(str(folder))
    found, wanted = (
        {name: getattr(config, name) for name in config.__slots__}
        for config in map(read_model_config, (ours, theirs))
    )
    assert found.pop("norm_eps") == pytest.approx(wanted.pop("norm_eps"))
    wanted["rope"].scaling.pop("rope_theta")  # which is there twice
    assert found == wanted
    expected = load_file(folder / "model.safetensors")
    torch.testing.assert_close(tensors_of(ours, expected), expected, rtol=0, atol=0)
    assert read_generation_defaults(ours, 160).eos_token_ids == (1,)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_weights_of_every_kind_are_those_of_transformers(written, family):
    _, file = written(family, KINDS)
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    expected = theirs.state_dict()
    if theirs.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert {tensor.tensor_type.name.lower() for tensor in gguf.GGUFReader(file).tensors} >= set(
        KINDS.split(",")
    )
    torch.testing.assert_close(tensors_of(open_model(str(file)), expected), expected, rtol=0, atol=0)


def test_the_head_of_a_file_may_have_a_kind_of_its_own(make_gguf, tmp_path):
    file = tmp_path / "demo.gguf"
    make_gguf.main(DEMO, file, "q4_0", "q8_0")
    matrices = {
        tensor.name: tensor.tensor_type.name
        for tensor in gguf.GGUFReader(file).tensors
        if len(tensor.shape) > 1
    }
    assert matrices.pop("token_embd.weight") == "Q8_0"
    matrices.pop("output.weight", None)
    assert {*matrices.values()} == {"Q4_0"}


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_file_is_served(written, quantization):
    _, file = written("llama", "q8_0")
    prompt = list(range(2, 40))
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[
        0, len(prompt) :
    ].tolist()
    options = TorchEngineOptions(
        model=str(file), dtype="float32", num_kv_blocks=32, quantization=quantization, device="cpu"
    )
    engine = CoreUnderTest(load_engine(options, lambda phase, done: None))
    found = engine.answer(greedy(prompt, 8)).tokens[0]
    assert found == expected if quantization == "none" else len(found) == 8


def test_the_tokenizer_and_its_template_are_those_of_the_file(make_gguf, tmp_path):
    make_gguf.main(DEMO, tmp_path / "demo.gguf", "q8_0")
    files = open_model(str(tmp_path / "demo.gguf")).tokenizer().files
    assert files["chat_template.jinja"].decode().strip() == (DEMO / "chat_template.jinja").read_text().strip()
    found, wanted = (
        json.loads(each)["model"] for each in (files["tokenizer.json"], (DEMO / "tokenizer.json").read_text())
    )
    assert (found["vocab"], found["merges"]) == (wanted["vocab"], wanted["merges"])


def test_other_weights_have_another_digest(written):
    _, file = written("llama")
    first = model_digest(open_model(str(file)))
    assert first == model_digest(open_model(str(file)))
    with file.open("r+b") as changed:
        changed.seek(gguf.GGUFReader(file).tensors[-1].data_offset)
        changed.write(np.float32(3.25).tobytes())
    assert first != model_digest(open_model(str(file)))


def metadata(path, architecture="llama", factors=None, **values):
    """A file with hardly a tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{name}", value)
    writer.add_tensor("token_embd.weight", np.zeros((32, 8), np.float32))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"architecture": "mamba"}, "general.architecture 'mamba' is not one of llama, qwen2, qwen3"),
        ({"expert_count": 8}, "a mixture of experts is not supported"),
        ({"factors": [1.0, 3.0, 9.0]}, "rope_freqs.weight is none of Llama's scalings"),
        (
            {"architecture": "qwen2", "attention.sliding_window": 8},
            "attention.sliding_window is not supported",
        ),
        (
            {"attention.key_length": 8, "rope.dimension_count": 4},
            "rope.dimension_count is not attention.key_length",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, said, refusal):
    with pytest.raises(ModelLoadError, match=refusal):
        open_model(metadata(tmp_path / "m.gguf", **said))


def test_a_field_that_is_missing_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"m\.gguf: num_attention_heads must be"):
        read_model_config(open_model(metadata(tmp_path / "m.gguf", embedding_length=8)))


def test_a_window_makes_a_mistral(tmp_path):
    assert open_model(metadata(tmp_path / "m.gguf", **{"attention.sliding_window": 8})).config[
        "architectures"
    ] == ["MistralForCausalLM"]


@pytest.mark.parametrize("size", [0, 3, 40, 3000, -5])
def test_half_a_file_is_refused(written, size):
    _, file = written("llama")
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelLoadError, match="not a usable GGUF file"):
        open_model(str(file))


def test_without_the_package_it_says_what_to_install(written, monkeypatch):
    _, file = written("llama")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelLoadError, match="needs the package gguf"):
        open_model(str(file))
