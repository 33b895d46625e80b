"""The adapters of one server: where they may come from, and which are loaded under which name.

`AdapterFolder` finds a folder that a caller names, and never one outside of the operator's.
`AdapterTable` keeps the contract's promises, so that an engine only has to load and unload. Knows
nothing about gRPC or about what is in an adapter.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from enginewire import v1 as pb
from enginewire.server.engines.interface import AdapterEngine, AdapterSource
from enginewire.server.failures import (
    AdapterExists,
    AdapterInUse,
    AdapterLimit,
    InvalidRequest,
    ModelNotFound,
)
from enginewire.server.validation.fields import invalid, shown
from enginewire.server.validation.generate import served_names

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What makes an adapter; no other file of its folder is looked at."""
MAX_FILE_BYTES = 4 * 2**30
MAX_SOURCE_CHARS = 1024
CHUNK_BYTES = 2**20

Result = TypeVar("Result")


class AdapterFolder:
    """The one folder below which adapters may be."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def open(self, name: str, source: str) -> AdapterSource:
        """The adapter at `source`; raises ModelNotFound, always with the same words, or InvalidRequest."""
        folder = self._find(source)
        digest = hashlib.sha256()
        for file in FILES:
            self._add_file(digest, folder / file)
        return AdapterSource(name, folder.relative_to(self._root).as_posix(), folder, digest.hexdigest())

    def _find(self, source: str) -> Path:
        path = PurePosixPath(source)
        is_plain = len(source) <= MAX_SOURCE_CHARS and "\0" not in source
        if not is_plain or path.is_absolute() or ".." in path.parts:
            raise _no_such_source()
        try:
            folder = (self._root / path).resolve(strict=True)
        except (OSError, RuntimeError) as error:  # links may go in a circle
            raise _no_such_source() from error
        if folder == self._root or not folder.is_relative_to(self._root) or not folder.is_dir():
            raise _no_such_source()
        return folder

    def _add_file(self, digest: hashlib._Hash, file: Path) -> None:
        """A file that is not there counts as an empty one: what an adapter needs, the engine knows."""
        size = 0
        try:
            if file.exists():
                if not (file.resolve(strict=True).is_relative_to(self._root) and file.is_file()):
                    raise _no_such_source()
                size = file.stat().st_size
                if size > MAX_FILE_BYTES:
                    raise InvalidRequest(
                        f"source: {file.name} is too large, got {size} bytes, allowed 0..{MAX_FILE_BYTES}",
                        field="source",
                    )
            digest.update(f"{file.name}\0{size}\0".encode())
            if size:
                with file.open("rb") as content:
                    while chunk := content.read(CHUNK_BYTES):
                        digest.update(chunk)
        except (OSError, RuntimeError) as error:
            raise InvalidRequest(f"source: {file.name} cannot be read", field="source") from error


@dataclass(frozen=True, slots=True)
class _Loaded:
    adapter: pb.Adapter
    digest: str


class AdapterTable:
    """The loaded adapters, by name. Lives on the event loop; one change at a time."""

    def __init__(self, folder: Path, max_loras: int) -> None:
        self._folder = AdapterFolder(folder)
        self._max_loras = max_loras
        self._loaded: dict[str, _Loaded] = {}
        self._changing = asyncio.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    def adapters(self) -> list[pb.Adapter]:
        """What is loaded, by name."""
        return [self._loaded[name].adapter for name in sorted(self._loaded)]

    async def load(self, engine: AdapterEngine, name: str, source: str) -> pb.Adapter:
        """Load an adapter, or find that it is loaded already.

        Raises ModelNotFound, AdapterExists, AdapterLimit, or what the engine has against it.
        """
        return await _to_the_end(self._load(engine, name, source))

    async def unload(self, engine: AdapterEngine, name: str, is_in_use: Callable[[str], bool]) -> None:
        """Forget an adapter; raises ModelNotFound or AdapterInUse."""
        await _to_the_end(self._unload(engine, name, is_in_use))

    async def _load(self, engine: AdapterEngine, name: str, source: str) -> pb.Adapter:
        async with self._changing:
            found = await asyncio.to_thread(self._folder.open, name, source)
            if name in self._loaded:
                return self._same(self._loaded[name], found)
            if len(self._loaded) >= self._max_loras:
                raise AdapterLimit(
                    f"{len(self._loaded)} adapters are loaded, allowed {self._max_loras}; unload one first",
                    metadata={"limit": str(self._max_loras)},
                )
            rank = await engine.load_adapter(found)
            adapter = pb.Adapter(name=name, source=found.source, rank=rank)
            self._loaded[name] = _Loaded(adapter, found.digest)
            return adapter

    def _same(self, loaded: _Loaded, found: AdapterSource) -> pb.Adapter:
        if (loaded.adapter.source, loaded.digest) != (found.source, found.digest):
            raise AdapterExists(f"name: another adapter is loaded as {found.name}", field="name")
        return loaded.adapter

    async def _unload(self, engine: AdapterEngine, name: str, is_in_use: Callable[[str], bool]) -> None:
        async with self._changing:
            if name not in self._loaded:
                raise ModelNotFound("name: no such adapter is loaded", field="name")
            if is_in_use(name):
                raise AdapterInUse(f"name: requests are using {name}", field="name")
            # First the name, so that no request finds it any more, then what is behind it.
            del self._loaded[name]
            await engine.unload_adapter(name)


async def _to_the_end(change: Coroutine[object, object, Result]) -> Result:
    """Await a change that goes on even when its caller hangs up: half a change helps nobody."""
    return await asyncio.shield(asyncio.ensure_future(change))


def _no_such_source() -> ModelNotFound:
    return ModelNotFound("source: no such folder below the adapter folder", field="source")


def chosen_adapter(
    config: pb.EngineConfig, adapters: AdapterTable | None, model: str, routing: pb.RoutingHints
) -> str:
    """The adapter that a request names, "" for none; engines find it in `routing.lora_name` only.

    Raises ModelNotFound, and InvalidRequest for two of them.
    """
    if not config.capabilities.lora:
        return ""
    field, name = "routing.lora_name", routing.lora_name
    if model and model not in served_names(config):
        if name not in ("", model):
            raise invalid(field, "is not the adapter that model names", name, shown(model))
        field, name = "model", model
    if name and adapters is not None and name not in adapters:
        raise ModelNotFound(f"{field}: no such adapter is loaded, got {shown(name)}", field=field)
    if field == "model":
        routing.lora_name = name
    return name
