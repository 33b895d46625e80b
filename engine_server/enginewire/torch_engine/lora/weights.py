"""The tensors of an adapter_model.safetensors, checked against the projections of the model.

Pickled weights are never read. Runs on the step thread, like everything that enters torch. Knows
nothing about requests or names of adapters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from enginewire.server.failures import AdapterLimit
from enginewire.torch_engine.lora.config import WEIGHTS_FILE, LoraConfig, broken
from enginewire.torch_engine.lora.projections import AdaptedProjections, LowRank, Part

TENSOR_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


Pair = tuple[Tensor, Tensor]


@torch.inference_mode()
def read_low_ranks(
    data: bytes, config: LoraConfig, projections: AdaptedProjections, like: Tensor
) -> Iterator[tuple[int, LowRank]]:
    """What the adapter adds, one projection after the other, in the dtype and on the device of `like`.

    Raises InvalidRequest and AdapterLimit, at any time.
    """
    by_projection: dict[int, list[str]] = {}
    pairs = _pairs(data)
    for module in pairs:
        part = projections.parts.get(module)
        if part is None:
            raise broken(WEIGHTS_FILE, f"{module!r:.100} is no projection that adapters can change here")
        by_projection.setdefault(part.projection, []).append(module)
    for number, modules in by_projection.items():
        try:
            parts = {
                module: _low_rank(module, pairs.pop(module), projections.parts[module], config, like)
                for module in modules
            }
            fused = projections.fuse(number, parts)
        except torch.OutOfMemoryError as error:
            raise AdapterLimit("source: the device has no memory for one more adapter") from error
        yield number, fused


def _pairs(data: bytes) -> dict[str, Pair]:
    """Both tensors of each module."""
    try:
        tensors = cast(Mapping[str, Tensor], load(data))
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise broken(WEIGHTS_FILE, "is not a usable safetensors file") from error
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = TENSOR_NAME.fullmatch(name)
        if match is None:
            raise broken(WEIGHTS_FILE, f"{name!r:.100} is neither lora_A nor lora_B of a module")
        found.setdefault(match[1], {})[match[2]] = tensor
    if not found:
        raise broken(WEIGHTS_FILE, "holds no tensors")
    for module, pair in found.items():
        if len(pair) != 2:
            raise broken(WEIGHTS_FILE, f"{module!r:.100} has only one of lora_A and lora_B")
    return {module: (pair["A"], pair["B"]) for module, pair in found.items()}


def _low_rank(module: str, pair: Pair, part: Part, config: LoraConfig, like: Tensor) -> LowRank:
    rank = config.rank_of(module)
    shapes = (rank, part.inputs), (part.outputs, rank)
    for name, tensor, shape in zip(("lora_A", "lora_B"), pair, shapes, strict=True):
        if tensor.shape != shape:
            wrong = f"has the shape {list(tensor.shape)}, expected {list(shape)}"
            raise broken(WEIGHTS_FILE, f"{name} of {module!r:.100} {wrong}")
        if tensor.dtype not in FLOATS or not bool(tensor.isfinite().all()):
            raise broken(WEIGHTS_FILE, f"{name} of {module!r:.100} must hold finite floats")
    down, up = pair
    return LowRank(_stored(down, like), _stored(up.to(torch.float32) * config.scale_of(module), like))


def _stored(weight: Tensor, like: Tensor) -> Tensor:
    """[outputs, inputs] as [inputs, outputs]; a copy, so that the file's bytes can go."""
    return weight.to(device=like.device, dtype=like.dtype, copy=True).t().contiguous()
