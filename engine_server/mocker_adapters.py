"""The rank of an adapter that the mocker pretends to load. Knows nothing about engines."""

from __future__ import annotations

import json
from pathlib import Path

from engine_server.failures import InvalidRequest

DEFAULT_RANK = 8
MAX_RANK = 2**16
MAX_JSON_BYTES = 2**20


def adapter_rank(folder: Path) -> int:
    """`r` of the folder's adapter_config.json, or a default without one; raises InvalidRequest."""
    path = folder / "adapter_config.json"
    if not path.exists():
        return DEFAULT_RANK
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken("not valid JSON") from error
    rank = config.get("r", DEFAULT_RANK) if isinstance(config, dict) else None
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        raise _broken(f"r must be from 1 to {MAX_RANK}")
    return rank


def _broken(reason: str) -> InvalidRequest:
    return InvalidRequest(f"source: adapter_config.json: {reason}", field="source")
