"""What a model of transformers does late in a text, or beside the known interface, is found at start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.models.huggingface.configs import HYBRID
from tests.torch_engine.models.huggingface.wide_models import save_wide
from tests.torch_engine.tiny import CoreUnderTest, greedy

MAX_TOKENS = 12
LONG = {"max_position_embeddings": 4096}
SCALED = {**LONG, "attention_chunk_size": 2048, "no_rope_layers": [1, 0], "attn_temperature_tuning": True}
BY_POSITION = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 256,
    "llama_4_scaling_beta": 0.5,
}

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """The folder of a random model."""

    def make(model_type: str, **changes: object) -> Path:
        save_wide(tmp_path, model_type, **changes)
        return tmp_path

    return make


def load(folder: Path, dtype: str = "float32") -> CoreUnderTest:
    options = TorchEngineOptions(str(folder), device="cpu", dtype=dtype, num_threads=1, max_num_seqs=4)
    return CoreUnderTest(load_engine(options, lambda phase, done: None))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as failure:
        load(folder)
    return str(failure.value)


def test_sparse_layers_which_begin_to_choose_late_are_refused_by_their_option(save: Save) -> None:
    folder = save("minimax_m3_vl_text", layer_types=["full_attention", "minimax_m3_sparse"], **LONG)
    assert "its attention needs the option block_indices, which is not supported" in refusal(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("begin", [100, 777, 2048])
def test_the_context_ends_where_a_layer_begins_to_scale_by_the_row_of_the_batch(
    save: Save, dtype: str, begin: int
) -> None:
    assert load(save("llama4_text", **SCALED, floor_scale=begin), dtype).loaded.context_length == begin - 1


def test_what_remains_of_that_context_is_what_transformers_says(save: Save) -> None:
    folder = save("llama4_text", **SCALED, floor_scale=100)
    network = transformers.Llama4ForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    prompt = torch.arange(99 - MAX_TOKENS)[None] * 31 % 150 + 2
    network.generation_config.eos_token_id = None
    limits = {"max_new_tokens": MAX_TOKENS, "min_new_tokens": MAX_TOKENS}
    wanted = network.generate(prompt, do_sample=False, pad_token_id=0, **limits)[0, -MAX_TOKENS:]
    engine = load(folder)
    assert engine.answer(greedy(prompt[0].tolist(), MAX_TOKENS)).tokens[0] == wanted.tolist()


def test_scaling_by_the_positions_that_we_give_takes_nothing_away(save: Save) -> None:
    assert load(save("ministral3", rope_parameters=BY_POSITION, **LONG)).loaded.context_length == 4096
    assert (
        load(save("llama4_text", **SCALED | {"attn_temperature_tuning": False})).loaded.context_length == 2048
    )


def test_a_model_that_counts_the_rows_of_a_batch_is_refused(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = transformers.models.gpt2.modeling_gpt2.GPT2Model.forward

    def by_row(self, input_ids=None, past_key_values=None, position_ids=None, **options):
        return run(self, input_ids, past_key_values, **options)

    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2.GPT2Model, "forward", by_row)
    assert "it counts positions in a way of its own" in refusal(save("gpt2"))


@pytest.mark.parametrize(("value", "is_refused"), [(None, False), (False, False), (0.5, True), (True, True)])
def test_an_option_of_attention_that_nobody_knows_is_refused_unless_it_is_off(
    save: Save, monkeypatch: pytest.MonkeyPatch, value: object, is_refused: bool
) -> None:
    run = transformers.models.gpt2.modeling_gpt2.GPT2Attention.forward

    def with_option(self, *inputs, **options):
        return run(self, *inputs, **options, tilt=value)

    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2.GPT2Attention, "forward", with_option)
    folder = save("gpt2")
    if is_refused:
        assert "its attention needs the option tilt, which is not supported" in refusal(folder)
    else:
        load(folder)


@pytest.mark.parametrize("method", ["update_conv_state", "update_recurrent_state"])
def test_state_beside_keys_and_values_is_refused_by_its_name(
    save: Save, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    run = transformers.models.gpt2.modeling_gpt2.GPT2Attention.forward

    def with_state(self, hidden_states, past_key_values=None, *inputs, **options):
        if past_key_values is not None:
            getattr(past_key_values, method)(hidden_states, 0)
        return run(self, hidden_states, past_key_values, *inputs, **options)

    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2.GPT2Attention, "forward", with_state)
    assert f"it keeps more than keys and values: it asks its cache for {method}" in refusal(save("gpt2"))


def test_state_that_a_layer_of_the_cache_should_have_is_refused_by_its_name(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = transformers.models.gpt2.modeling_gpt2.GPT2Attention.forward

    def with_state(self, hidden_states, past_key_values=None, *inputs, **options):
        if past_key_values is not None:
            past_key_values.layers[0].update_index(hidden_states)
        return run(self, hidden_states, past_key_values, *inputs, **options)

    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2.GPT2Attention, "forward", with_state)
    assert "it asks its cache for update_index" in refusal(save("gpt2"))


def test_a_hybrid_with_other_layers_is_refused_before_a_weight_is_read(save: Save) -> None:
    folder = save("granitemoehybrid", **HYBRID | {"layer_types": ["attention", "mamba"]})
    (folder / "model.safetensors").write_bytes(b"")
    assert "it keeps state other than keys and values" in refusal(folder)
