import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from enginewire.torch_engine.folder.quantized import read_format

RECORDED = sorted((Path(__file__).parent / "quantized").glob("*.safetensors"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_weights_are_what_the_library_makes_of_them(file):
    with safe_open(file, framework="pt") as stored:
        parts = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # no mapping
        config = json.loads(stored.metadata()["config"])
    expected = parts.pop("expected")
    quantized = read_format(config)
    assert quantized.mark in parts
    torch.testing.assert_close(quantized.floats(parts.get), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_zero_that_wrapped_around_is_zero_again(bits):
    words, scales = torch.full((4, 8), 0x03030303, dtype=torch.int32), torch.ones(1, 8)
    highest = torch.full((1, 8 * bits // 32), -1, dtype=torch.int32)
    parts = {"qweight": words, "qzeros": highest, "scales": scales}
    weight = read_format({"quantization_config": {"quant_method": "gptq"}}).floats(parts.get)
    assert set(weight.flatten().tolist()) == ({0.0, 3.0} if bits == 4 else {3.0})


def test_version_2_of_gptq_keeps_its_zeros_as_they_are():
    parts = {
        "qweight": torch.full((1, 8), 0x55555555, dtype=torch.int32),
        "qzeros": torch.full((1, 1), 0x22222222, dtype=torch.int32),
        "scales": torch.ones(1, 8),
    }
    fields = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    assert read_format({"quantization_config": fields}).floats(parts.get).eq(3).all()


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method must be one of awq, compressed-tensors, fp8, gptq"),
        ({"bits": 4}, "quant_method must be one of"),
        ([4], "quant_method must be one of"),
        (
            {"quant_method": "gptq", "checkpoint_format": "marlin"},
            "checkpoint_format must be one of gptq",
        ),
        ({"quant_method": "awq", "version": "gemv"}, "version must be one of gemm"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size must be two positive"),
    ],
)
def test_other_formats_are_refused_by_name(fields, refusal):
    with pytest.raises(ValueError, match=refusal):
        read_format({"quantization_config": fields})
