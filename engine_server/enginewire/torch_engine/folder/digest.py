"""What tells two models apart without reading all of their weights.

Of every tensor the name, type, shape and first bytes count, and the whole configuration: a model that was
trained on differs in practically every number.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from enginewire.torch_engine.folder.folder import MAX_JSON_BYTES, ModelFolder, ModelLoadError
from enginewire.torch_engine.folder.gguf import GgufModel

SAMPLE_BYTES = 4096


def model_digest(folder: ModelFolder) -> str:
    """64 hex digits; raises ModelLoadError."""
    digest = sha256(json.dumps(folder.config, sort_keys=True).encode())
    for line in sorted(_gguf(folder) if isinstance(folder, GgufModel) else _safetensors(folder)):
        digest.update(line)
    return digest.hexdigest()


def _gguf(folder: GgufModel) -> Iterator[bytes]:
    for name, tensor in folder.tensors.stored():
        sample = sha256(tensor.data.tobytes()[:SAMPLE_BYTES]).hexdigest()
        yield json.dumps([name, tensor.tensor_type.name, tensor.shape.tolist(), sample]).encode()


def _safetensors(folder: ModelFolder) -> Iterator[bytes]:
    return (line for file in folder.weight_files() for line in _tensors(file))


def _tensors(path: Path) -> Iterator[bytes]:
    """One line per tensor of a safetensors file, wherever in it the tensor is."""
    with path.open("rb") as file:
        try:
            header, begin = _header(file)
            for name, about in header.items():
                if name != "__metadata__":
                    first, last = about["data_offsets"]
                    file.seek(begin + first)
                    sample = sha256(file.read(min(last - first, SAMPLE_BYTES))).hexdigest()
                    yield json.dumps([name, about["dtype"], about["shape"], sample]).encode()
        except (ValueError, KeyError, TypeError, struct.error, OSError) as error:
            raise ModelLoadError(f"{path}: not a safetensors file") from error


def _header(file: BinaryIO) -> tuple[dict[str, dict[str, list[int]]], int]:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > MAX_JSON_BYTES:
        raise ValueError("the header is too large")
    header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise TypeError("the header is not an object")
    return header, 8 + size
