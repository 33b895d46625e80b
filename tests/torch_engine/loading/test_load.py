"""Broken model folders end in one line that names the file; good ones load as they say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError
from enginewire.torch_engine.folder.source import is_hub_name, resolve_model
from enginewire.torch_engine.layers.int4.linear import Int4Linear
from enginewire.torch_engine.layers.linear import Int8Linear
from enginewire.torch_engine.loading.load import load_engine, longest_window
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.tiny import CoreUnderTest, greedy


@pytest.fixture
def folder(model_folder, tmp_path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))


def load(folder: Path, **options: object) -> CoreUnderTest:
    values = {"model": str(folder), "device": "cpu", "num_threads": 1, "max_num_seqs": 4, **options}
    return CoreUnderTest(load_engine(TorchEngineOptions(**values), lambda phase, done: None))


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(ModelLoadError) as failure:
        load(folder, **options)
    message = str(failure.value)
    assert "\n" not in message
    return message


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_a_folder_that_is_not_there_or_no_folder(tmp_path):
    assert "no such model folder" in refusal(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    assert "not a folder" in refusal(tmp_path / "file")
    assert "config.json: missing" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"", b"[" * 100_000])
def test_a_config_that_is_no_json_object(folder, content):
    (folder / "config.json").write_bytes(content)
    assert "config.json: " in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architectures 'MambaForCausalLM' is not supported"),
        ({"architectures": None}, "architectures None is not supported"),
        ({"hidden_size": "wide"}, "hidden_size must be an integer"),
        ({"hidden_size": 10**12}, "hidden_size must be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a finite number"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2}}, "'longrope' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method must be one of awq"),
        ({"hidden_size": 36}, "has the shape"),
        ({"num_hidden_layers": 4}, "no weight file holds the tensor model.layers.3."),
    ],
)
def test_a_config_that_does_not_fit(folder, changes, expected):
    edit_config(folder, **changes)
    assert expected in refusal(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-100],
        lambda data: data[:4],
        lambda data: b"",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"x" * 50 + data[58:],
    ],
    ids=["truncated", "no header", "empty", "oversized header", "broken header"],
)
def test_a_damaged_weight_file(folder, damage):
    file = folder / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert "model.safetensors: not a usable safetensors file" in refusal(folder)


def test_weights_that_are_pickled_or_missing(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "no .safetensors file" in refusal(folder)


def quantise(folder: Path) -> None:
    """Write the projections as compressed-tensors does, 8 bits each, but for the head."""
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        weight = weights[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        weights[name] = (weight / scale).round().to(torch.int8)
        weights[f"{name}_scale"] = scale
    save_file(weights, folder / "model.safetensors")
    edit_config(folder, quantization_config={"quant_method": "compressed-tensors"})


def test_quantised_weights_answer_as_the_floats_that_they_stand_for(folder, tmp_path):
    quantise(folder)
    plain = Path(shutil.copytree(folder, tmp_path / "plain"))
    weights = load_file(plain / "model.safetensors")
    for name in [name for name in weights if name.endswith("_scale")]:
        scale, weight = weights.pop(name), name.removesuffix("_scale")
        weights[weight] = weights[weight].float() * scale
    save_file(weights, plain / "model.safetensors")
    edit_config(plain, quantization_config=None)
    answers = [load(each, dtype="float32").answer(greedy([4, 5, 6], 8)) for each in (folder, plain)]
    assert answers[0].tokens == answers[1].tokens


def test_quantised_weights_with_a_part_missing_or_of_another_size(folder):
    quantise(folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({**weights, name: weights[name][:, 1:].contiguous()}, folder / "model.safetensors")
    assert f"model.safetensors: {name.removesuffix('weight')}* has the shape" in refusal(folder)
    save_file({**weights, f"{name}_scale": torch.ones(5, 1)}, folder / "model.safetensors")
    assert "cannot be read as quantised weights: 5 scales for" in refusal(folder)
    del weights[name]
    save_file(weights, folder / "model.safetensors")
    assert refusal(folder).endswith("weight is missing")


def test_integer_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    save_file(weights, folder / "model.safetensors")
    assert "only plain floats" in refusal(folder)


def shard(folder: Path) -> Path:
    """Split the weights into two files with an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: file for file, part in parts.items() for n in part}}))
    return index


def test_sharded_weights_load_and_a_missing_shard_is_named(folder, expected):
    shard(folder)
    tokens = load(folder, dtype="float32").answer(greedy([4, 5, 6], 8)).tokens[0]
    assert tokens == expected("llama", [4, 5, 6], 8)
    (folder / "b.safetensors").unlink()
    assert "b.safetensors: missing" in refusal(folder)


@pytest.mark.parametrize("weight_map", [None, {"x": 3}, {"x": "../model.safetensors"}, {"x": "/etc/passwd"}])
def test_an_index_that_points_anywhere_else(folder, weight_map):
    index = shard(folder)
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert "model.safetensors.index.json: " in refusal(folder)


def test_code_in_a_folder_is_never_run(folder, tmp_path):
    marker = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w')")
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("windows", "longest"), [((), None), ((8, 16, 4), 16), ((8, None), None), ((None, None), None)]
)
def test_how_far_back_a_model_looks_is_the_longest_window_if_every_layer_has_one(windows, longest):
    assert longest_window(windows) == longest


@pytest.mark.parametrize(
    ("family", "num_kv_blocks", "context"), [("mistral", 3, 256), ("mistral", 2, 8), ("llama", 3, 12)]
)
def test_the_cache_bounds_the_context_unless_a_window_bounds_what_is_held(
    model_folder, family, num_kv_blocks, context
):
    loaded = load(model_folder(family), num_kv_blocks=num_kv_blocks, block_size=4).loaded
    assert loaded.context_length == context
    assert loaded.core.scheduler.takes_any_length == (context == 256)


def test_a_window_above_the_models_is_refused(folder):
    assert "max_model_len 257" in refusal(folder, max_model_len=257)


def test_a_window_above_what_the_cache_holds_is_refused(folder):
    held = {"num_kv_blocks": 4, "block_size": 4}
    assert load(folder, max_model_len=16, **held).loaded.context_length == 16
    assert "max_model_len 17 is above the 16 tokens" in refusal(folder, max_model_len=17, **held)


def test_generation_defaults_come_from_the_folder(folder):
    values = {"eos_token_id": [3, 4, 999], "temperature": 0.7, "top_k": 9, "top_p": 7.0, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(values))
    defaults = load(folder).loaded.defaults
    assert (defaults.eos_token_ids, defaults.temperature) == ((3, 4), pytest.approx(0.7))
    assert (defaults.top_k, defaults.top_p) == (9, 1.0)
    (folder / "generation_config.json").write_text(json.dumps({**values, "do_sample": False}))
    assert load(folder).loaded.defaults.temperature == 0.0


def test_the_cache_is_as_large_as_asked_and_never_larger_than_useful(folder):
    per_block = 2 * 3 * 2 * 8 * 16 * 4
    sizes = {
        10: load(folder, kv_cache_memory_bytes=10 * per_block + 1),
        64: load(folder, kv_cache_memory_bytes=10**9),
        5: load(folder, num_kv_blocks=5),
    }
    for blocks, engine in sizes.items():
        assert engine.core.scheduler.pool.num_blocks == blocks
    assert sizes[5].loaded.context_length == 80


def test_the_smallest_possible_cache_starts(folder):
    engine = load(folder, num_kv_blocks=1, block_size=1)
    assert engine.loaded.context_length == 1
    engine = load(folder, num_kv_blocks=2, block_size=1)
    assert len(engine.answer(greedy([4], 1)).tokens[0]) == 1


def test_a_cache_that_is_too_large_for_the_memory_is_refused(folder):
    assert "there is no memory for 1 KV blocks of" in refusal(folder, num_kv_blocks=1, block_size=2**50)


def test_a_model_that_computes_nonsense_does_not_start(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= float("nan")
    save_file(weights, folder / "model.safetensors")
    assert "no usable logits" in refusal(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_stays_close(folder, dtype, oracle):
    engine = load(folder, dtype=dtype)
    request = greedy([4, 5, 6, 7], 1)
    request.output_options.logprobs = 0
    answer = engine.answer(request)
    with torch.no_grad():
        exact = oracle("llama")(torch.tensor([[4, 5, 6, 7]])).logits[0, -1].log_softmax(-1)
    assert answer.logprobs[0].token_logprobs[0] == pytest.approx(exact[answer.tokens[0][0]].item(), abs=1.0)


def test_the_tokenizer_files_are_offered_as_they_are(folder):
    assert ModelFolder.open(folder).tokenizer() is None
    (folder / "tokenizer.json").write_text("{}")
    assert ModelFolder.open(folder).tokenizer().files["tokenizer.json"] == b"{}"


def test_only_a_name_of_two_parts_can_be_a_hub_name(tmp_path):
    assert is_hub_name("owner/model")
    assert not any(map(is_hub_name, ["model", "a/b/c", "../model", "/model", "~/model", "builtin:demo"]))
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_hub_name_without_network_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="owner/model: no such folder, not in the local hub cache"):
        resolve_model("owner/model")


@pytest.mark.parametrize(
    "options",
    [
        {"device": "tpu"},
        {"dtype": "int8"},
        {"kv_cache_dtype": "float32"},
        {"block_size": 0},
        {"max_num_seqs": -1},
        {"max_num_seqs": 8, "max_num_batched_tokens": 7},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TorchEngineOptions(**options)


def test_eight_bit_weights_are_for_float32_and_bfloat16_on_a_cpu(folder):
    assert "int8" in refusal(folder, quantization="int8", dtype="float16")
    engine = load(folder, quantization="int8", compile_kernels=False)
    model = engine.core._runner.model
    assert isinstance(model.layers[0].down, Int8Linear)
    assert isinstance(model.head, Int8Linear)
    assert len(engine.answer(greedy([5, 6, 7], 4)).tokens[0]) == 4


@pytest.mark.parametrize("compiled", [False, True])
def test_four_bit_weights_are_those_of_the_layers_and_the_head_keeps_eight(compiled, folder, caplog):
    assert "quantization int4 needs a CPU" in refusal(folder, quantization="int4", dtype="float16")
    engine = load(folder, quantization="int4", compile_kernels=compiled)
    model = engine.core._runner.model
    layer = model.layers[0]
    assert all(isinstance(each, Int4Linear) for each in (layer.qkv, layer.output, layer.gate_up, layer.down))
    assert (layer.down._kernel is not None, isinstance(model.head, Int4Linear)) == (compiled, False)
    plain = load(folder, quantization="int8").core._runner.model.head
    value = torch.randn(20, model.embedding_size)
    assert model.head(value).equal(plain(value))
    assert len(engine.answer(greedy([5, 6, 7], 4)).tokens[0]) == 4
    assert ("quantization int4 without our kernel is slow" in caplog.text) != compiled


def test_an_unknown_quantization_is_refused():
    with pytest.raises(ValueError, match="none, int8, int4"):
        TorchEngineOptions(quantization="int3")
