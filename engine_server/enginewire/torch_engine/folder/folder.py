"""A Hugging Face model folder: where it is, what its JSON files say, which files hold weights.

Everything that can be wrong with a folder becomes a `ModelLoadError` of one line that names the
file. Knows nothing about torch, and never runs code from a folder: `auto_map` is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from enginewire.server.engines.interface import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
)
MAX_JSON_BYTES = 64 * 2**20
"""Weight indexes of the largest public models stay below 10 MB."""

Json = Mapping[str, object]


class ModelLoadError(Exception):
    """A model cannot be loaded; the message is one line that names the file at fault."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that exists and has a readable config.json."""

    path: Path
    config: Json
    generation_config: Json

    @classmethod
    def open(cls, path: Path) -> ModelFolder:
        """Read the JSON files of `path`; raises ModelLoadError."""
        if not path.exists():
            raise ModelLoadError(f"{path}: no such model folder")
        if not path.is_dir():
            raise ModelLoadError(f"{path}: not a folder")
        config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        return cls(path, config, read_json(generation) if generation.exists() else {})

    @property
    def config_file(self) -> Path:
        """Where the configuration stands."""
        return self.path / "config.json"

    def weight_files(self) -> list[Path]:
        """The safetensors files, from the index if there is one; raises ModelLoadError."""
        index = self.path / "model.safetensors.index.json"
        files = self._indexed_files(index) if index.exists() else sorted(self.path.glob("*.safetensors"))
        if not files:
            raise ModelLoadError(f"{self.path}: no .safetensors file (pickled weights are never loaded)")
        return files

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer files that are there, or None."""
        return tokenizer_in(self.path)

    def _indexed_files(self, index: Path) -> list[Path]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise ModelLoadError(f"{index}: weight_map must map tensor names to file names")
        files = [self.path / name for name in sorted(set(weight_map.values()))]
        for file in files:
            if file.parent != self.path or file.name in ("", "..", "."):
                raise ModelLoadError(f"{index}: {file.name!r} is not a file name in this folder")
            if not file.is_file():
                raise ModelLoadError(f"{file}: missing, but {index.name} names it")
        return files


def tokenizer_in(folder: Path) -> Tokenizer | None:
    """The tokenizer files of a folder, None when they make no tokenizer."""
    found = {name: folder / name for name in TOKENIZER_FILES}
    files = {name: path.read_bytes() for name, path in found.items() if path.is_file()}
    return Tokenizer(files) if "tokenizer.json" in files or "tokenizer.model" in files else None


def read_json(path: Path) -> Json:
    """The object in a JSON file; raises ModelLoadError."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path}: larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: missing") from error
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    return value
