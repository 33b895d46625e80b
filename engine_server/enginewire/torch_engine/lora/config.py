"""What adapter_config.json, in the format of peft, says about an adapter.

Everything that this engine does not do is refused in one line: an adapter that is served without half
of what it is would be another one. Knows nothing about torch or the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from enginewire.server.failures import InvalidRequest

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 2**20
MAX_PATTERNS = 1024
MAX_ALPHA = 1e6

# Fields that only training reads, or that the names of the tensors tell better.
WITHOUT_EFFECT = frozenset(
    {
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules",
        "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config",
        "lora_alpha", "lora_dropout", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r",
        "rank_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
    }
)  # fmt: skip
KEEPS_BASE_WEIGHTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Ways to begin training after which the base model is what it was."""
PLAIN_NAME = re.compile(r"\^?[A-Za-z0-9_.]{1,256}")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Rank and scale of every module. A pattern is a module's name or the end of it."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    is_rank_stabilized: bool

    def rank_of(self, module: str) -> int:
        """Rows of the module's `lora_A`."""
        return next((rank for name, rank in self.ranks.items() if _names(name, module)), self.rank)

    def scale_of(self, module: str) -> float:
        """What the module's product is multiplied by."""
        alpha = next((alpha for name, alpha in self.alphas.items() if _names(name, module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (sqrt(rank) if self.is_rank_stabilized else rank)


def read_lora_config(data: bytes, max_rank: int) -> LoraConfig:
    """Check the file's content; raises InvalidRequest for what is broken, too large or not supported."""
    fields = _parse(data)
    if fields.get("peft_type") != "LORA":
        raise broken(CONFIG_FILE, f"peft_type must be LORA, got {fields.get('peft_type')!r:.40}")
    if fields.get("task_type") not in (None, "CAUSAL_LM"):
        raise broken(CONFIG_FILE, f"task_type must be CAUSAL_LM, got {fields['task_type']!r:.40}")
    if fields.get("init_lora_weights", True) not in KEEPS_BASE_WEIGHTS:
        how = fields["init_lora_weights"]
        raise broken(
            CONFIG_FILE, f"init_lora_weights {how!r:.40} is not supported: it changes the base model"
        )
    for name, value in fields.items():
        if value and name not in WITHOUT_EFFECT and (name, value) != ("bias", "none"):
            raise broken(CONFIG_FILE, f"{name!r:.40} is not supported")
    return LoraConfig(
        rank=_rank(fields.get("r"), max_rank),
        alpha=_alpha(fields.get("lora_alpha")),
        ranks={name: _rank(rank, max_rank) for name, rank in _patterns(fields, "rank_pattern")},
        alphas={name: _alpha(alpha) for name, alpha in _patterns(fields, "alpha_pattern")},
        is_rank_stabilized=bool(fields.get("use_rslora")),
    )


def read_files(folder: Path, max_weight_bytes: int) -> tuple[bytes, bytes]:
    """Configuration and weights of an adapter; raises InvalidRequest."""
    return read_config_file(folder), _read(folder / WEIGHTS_FILE, max_weight_bytes)


def read_config_file(folder: Path) -> bytes:
    """Configuration of an adapter; raises InvalidRequest."""
    return _read(folder / CONFIG_FILE, MAX_CONFIG_BYTES)


def broken(file: str, reason: str) -> InvalidRequest:
    """The failure of an adapter, by the name of the file at fault."""
    return InvalidRequest(f"source: {file}: {reason}", field="source")


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError as error:
        raise broken(path.name, "is missing") from error
    except OSError as error:
        raise broken(path.name, "cannot be read") from error
    if len(data) > most:
        raise broken(path.name, f"is too large, allowed 0..{most} bytes")
    return data


def _parse(data: bytes) -> Mapping[str, object]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise broken(CONFIG_FILE, "is not valid JSON") from error
    if not isinstance(fields, dict):
        raise broken(CONFIG_FILE, "must hold a JSON object")
    return fields


def _rank(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise broken(CONFIG_FILE, f"the rank must be from 1 to {most}, got {value!r:.40}")
    return value


def _alpha(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_ALPHA:
        raise broken(CONFIG_FILE, f"lora_alpha must be a number, got {value!r:.40}")
    return float(value)


def _patterns(fields: Mapping[str, object], name: str) -> list[tuple[str, object]]:
    patterns = fields.get(name) or {}
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        raise broken(CONFIG_FILE, f"{name} must map at most {MAX_PATTERNS} module names")
    for pattern in patterns:
        if not PLAIN_NAME.fullmatch(pattern):  # a regular expression of a stranger may run for ever
            raise broken(CONFIG_FILE, f"{name} must hold plain names of modules, got {pattern!r:.40}")
    return list(patterns.items())


def _names(pattern: str, module: str) -> bool:
    if pattern.startswith("^"):
        return module == pattern[1:]
    return module == pattern or module.endswith(f".{pattern}")
