"""The adapters that the mocker pretends to load: names and ranks. Knows nothing about engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from enginewire.server.engines.interface import AdapterSource
from enginewire.server.failures import InvalidRequest, ModelNotFound

DEFAULT_RANK = 8
MAX_RANK = 2**16
MAX_JSON_BYTES = 2**20


class MockerAdapters:
    """The names that requests may use, each with the digest of its files."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    async def load(self, adapter: AdapterSource) -> int:
        """Any folder will do; what it says about its rank is believed. Raises InvalidRequest."""
        rank = await asyncio.to_thread(adapter_rank, adapter.folder)
        self._digests[adapter.name] = adapter.digest
        return rank

    def unload(self, name: str) -> None:
        """Forget the name."""
        self._digests.pop(name, None)

    def digest(self, name: str) -> str:
        """Of the adapter's files, "" of the model itself; raises ModelNotFound for what is not loaded."""
        if name and name not in self._digests:
            raise ModelNotFound("routing.lora_name: no such adapter is loaded", field="routing.lora_name")
        return self._digests.get(name, "")


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
