"""What Dynamo has to know of a model before it can use it: the tokenizer's files, and a `config.json`.

Dynamo reads a folder as a hub has it. The engine sends the files of its tokenizer alone, so the little
that is read of `config.json` is written from the engine's facts. Knows nothing about Dynamo's runtime.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import failed

CONFIG: Final = "config.json"
DIGEST_CHARS: Final = 16
# A name that no library knows: nobody shall take the folder for one with weights.
MODEL_TYPE: Final = "enginewire"


def write_card(base: Path, config: pb.EngineConfig, files: Mapping[str, bytes]) -> Path:
    """The folder below `base` that Dynamo takes, the same for the same content.

    A frontend uses only such workers of a model together whose cards are equal, and the path is a part of the
    card. The file names are plain: they are checked on the way here.
    """
    content = {**files, CONFIG: json.dumps(model_config(config)).encode()}
    digest = hashlib.sha256()
    for name, data in sorted(content.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    folder = base / digest.hexdigest()[:DIGEST_CHARS]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in content.items():
        # Another worker may read it, or write the same.
        part = folder / f".{name}.{os.getpid()}"
        part.write_bytes(data)
        part.replace(folder / name)
    return folder


def model_config(config: pb.EngineConfig) -> dict[str, object]:
    """The `config.json` of the engine's model."""
    said: dict[str, object] = {
        "model_type": MODEL_TYPE,
        "architectures": [MODEL_TYPE],
        "vocab_size": config.vocab_size,
        "eos_token_id": list(config.eos_token_ids),
    }
    if config.HasField("context_length"):
        said["max_position_embeddings"] = config.context_length
    return said


def model_name(config: pb.EngineConfig) -> str:
    """How callers name the model."""
    return config.served_model_name or config.model


def check_role(config: pb.EngineConfig) -> None:
    """Raise RequestFailed for an engine that computes a half of an answer only."""
    if config.role not in (pb.ENGINE_ROLE_UNSPECIFIED, pb.ENGINE_ROLE_AGGREGATED):
        role = pb.EngineRole.Name(config.role).removeprefix("ENGINE_ROLE_").lower()
        code, reason = grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_REASON_ROLE_MISMATCH
        raise failed(
            code, reason, f"role: this worker is for engines that do everything, and this one is {role}"
        )
