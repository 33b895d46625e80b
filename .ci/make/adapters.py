"""Writes LoRA adapters of builtin:demo as peft saves them, with random weights: something to load.

Usage: python .ci/make/adapters.py FOLDER NAME...
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from enginewire.server import demo_model

RANK = 4
SPREAD = 0.2
"""Of the random weights: an adapter that changes what the model says."""

PROJECTION = re.compile(r"(?P<module>.*\.(q|k|v|o|gate|up|down)_proj)\.weight")


def main() -> None:
    """One folder per name."""
    folder, *names = sys.argv[1:]
    for seed, name in enumerate(names):
        _write(Path(folder) / name, torch.Generator().manual_seed(seed))


def _write(folder: Path, generator: torch.Generator) -> None:
    folder.mkdir()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK}
    tensors, targets = {}, set[str]()
    for module, (outputs, inputs) in _projections():
        for side, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
            random = SPREAD * torch.randn(shape, generator=generator)
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = random
        targets.add(module.rpartition(".")[2])
    config["target_modules"] = sorted(targets)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")


def _projections() -> Iterator[tuple[str, list[int]]]:
    """Every layer that an adapter may change, and its shape."""
    with safe_open(demo_model.PATH / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118  # it is no dict
            if found := PROJECTION.fullmatch(name):
                yield found["module"], weights.get_slice(name).get_shape()


main()
