"""Every rope variant has the frequencies transformers computes."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from enginewire.torch_engine.folder.config import read_model_config
from enginewire.torch_engine.folder.folder import ModelFolder
from enginewire.torch_engine.layers.rotary import rope_frequencies
from tests.torch_engine.tiny import LLAMA3, SHAPE

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0},
        LLAMA3,
        YARN,
        {**YARN, "beta_fast": 20, "beta_slow": 2, "truncate": False},
        {**YARN, "attention_factor": 1.3},
        {**YARN, "mscale": 0.8, "mscale_all_dim": 1.1},
    ],
)
def test_scaled_frequencies_equal_transformers(rope, tmp_path):
    config = transformers.LlamaConfig(
        **{**SHAPE, "head_dim": 64}, rope_parameters=rope, architectures=["LlamaForCausalLM"]
    )
    config.save_pretrained(tmp_path)
    expected, expected_factor = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]](
        config, torch.device("cpu")
    )
    ours = read_model_config(ModelFolder.open(tmp_path))
    frequencies, factor = rope_frequencies(ours.rope, ours.head_dim)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0.0)
    assert factor == pytest.approx(expected_factor)


def test_configurations_of_older_versions_are_read(tmp_path):
    old = {
        **SHAPE,
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 777.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(old))
    config = read_model_config(ModelFolder.open(tmp_path))
    assert (config.rope.kind, config.rope.theta, config.rope.scaling["factor"]) == ("linear", 777.0, 2.0)
    assert config.dtype == "bfloat16"
