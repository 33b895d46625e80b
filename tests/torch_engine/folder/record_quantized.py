"""Writes `quantized/`: projections that other libraries have quantised, and what those make of them again.

    python tests/torch_engine/folder/record_quantized.py AUTOGPTQ AUTOAWQ

It needs compressed-tensors 0.20, and the folders of unpacked auto-gptq 0.7.1 and autoawq 0.2.9. The tests
need none of them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_file
from torch import Tensor

FOLDER = Path(__file__).parent / "quantized"
OUTPUTS, INPUTS, GROUP = 32, 64, 16


def main(autogptq: str, autoawq: str) -> None:
    """Write every case."""
    torch.manual_seed(5)
    FOLDER.mkdir(exist_ok=True)
    for bits in (4, 8):
        save(f"gptq-{bits}", {"quant_method": "gptq"}, *gptq(Path(autogptq), bits))
    order = torch.randperm(INPUTS) // GROUP
    save("gptq-act-order", {"quant_method": "gptq"}, *gptq(Path(autogptq), 4, order))
    save("awq", {"quant_method": "awq", "version": "gemm"}, *awq(Path(autoawq)))
    group = {"num_bits": 4, "strategy": "group", "group_size": GROUP}
    schemes = {
        "pack-quantized-group": group,
        "pack-quantized-group-asymmetric": group | {"symmetric": False},
        "pack-quantized-channel": {"num_bits": 8, "strategy": "channel"},
        "int-quantized-channel": {"num_bits": 8, "strategy": "channel"},
        "float-quantized-channel": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "float-quantized-tensor": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    }
    for name, weights in schemes.items():
        save(name, {"quant_method": "compressed-tensors"}, *compressed(name, weights))
    save("fp8-block", {"quant_method": "fp8", "weight_block_size": [24, 32]}, *blocks(24, 32))


def save(name: str, config: dict[str, object], parts: dict[str, Tensor], weight: Tensor) -> None:
    """One case: its parts, the weight they stand for, and what `config.json` says."""
    tensors = {part: tensor.contiguous() for part, tensor in (parts | {"expected": weight.float()}).items()}
    config_json = json.dumps({"quantization_config": config})
    save_file(tensors, FOLDER / f"{name}.safetensors", {"config": config_json})


def gptq(sources: Path, bits: int, groups: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """By auto-gptq, of any words: its product with the identity is the weight."""
    library = module(sources / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    layer = library.QuantLinear(bits, GROUP, INPUTS, OUTPUTS, bias=False, weight_dtype=torch.float32)
    layer.qweight = words(INPUTS * bits // 32, OUTPUTS)
    # Its zeros are one less. The highest value stands for a zero that wrapped around, which it does not undo.
    layer.qzeros = words(INPUTS // GROUP, OUTPUTS * bits // 32) & 0x77777777
    layer.scales = torch.rand(INPUTS // GROUP, OUTPUTS)
    layer.g_idx = layer.g_idx if groups is None else groups.int()
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    return parts, layer(torch.eye(INPUTS)).T


def awq(sources: Path) -> tuple[dict[str, Tensor], Tensor]:
    """By autoawq, of any words."""
    library = module(sources / "awq/utils/packing_utils.py")
    numbers, zeros = words(INPUTS, OUTPUTS // 8), words(INPUTS // GROUP, OUTPUTS // 8)
    scales = torch.rand(INPUTS // GROUP, OUTPUTS)
    weight = library.dequantize_gemm(numbers, zeros, scales, 4, GROUP).T
    return {"qweight": numbers, "qzeros": zeros, "scales": scales}, weight


def words(*shape: int) -> Tensor:
    """Any bits."""
    limits = torch.iinfo(torch.int32)
    return torch.randint(limits.min, limits.max, shape, dtype=torch.int32)


def module(file: Path) -> ModuleType:
    """One file of a package that does not import as a whole with today's transformers."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def compressed(name: str, weights: dict[str, object]) -> tuple[dict[str, Tensor], Tensor]:
    """By compressed-tensors, there and back."""
    from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-not-found]
    from compressed_tensors.quantization import (  # type: ignore[import-not-found]
        QuantizationArgs,
        QuantizationScheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams  # type: ignore[import-not-found]

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn(OUTPUTS, INPUTS)
    grouped = weight.reshape(OUTPUTS, -1, args.group_size or INPUTS)
    low, high = grouped.amin(-1), grouped.amax(-1)
    if weights["strategy"] == "tensor":
        low, high = low.min().reshape(1), high.max().reshape(1)
    scale, zero = calculate_qparams(low, high, args)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    kind = "-".join(name.split("-")[:2])
    compressor = BaseCompressor.get_value_from_registry(kind)
    parts = compressor.compress(state, scheme)
    return dict(parts), compressor.decompress(parts, scheme)["weight"]


def blocks(outputs: int, inputs: int) -> tuple[dict[str, Tensor], Tensor]:
    """By the definition: no library of ours has blocks that do not divide the weight."""
    scales = torch.rand(-(-OUTPUTS // outputs), -(-INPUTS // inputs))
    stored = torch.randn(OUTPUTS, INPUTS).to(torch.float8_e4m3fn)
    weight = stored.float()
    for row, column in torch.cartesian_prod(*map(torch.arange, scales.shape)).tolist():
        top, left = row * outputs, column * inputs
        weight[top : top + outputs, left : left + inputs] *= scales[row, column]
    return {"weight": stored, "weight_scale_inv": scales}, weight


if __name__ == "__main__":
    main(*sys.argv[1:])
