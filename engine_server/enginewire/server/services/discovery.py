"""The RPCs of DiscoveryService: facts about the engine, its load, its tokenizer. All read-only."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.server.engines.interface import NamedEngine
from enginewire.server.failures import InvalidRequest, ModelNotFound
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.handlers import Call
from enginewire.version import __version__

CHUNK_BYTES = 1 << 20
DEFAULT_INTERVAL_MS = 100
SHORTEST_INTERVAL_MS = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this server is. What was configured outlives a restart, the lifetime never does."""

    nameless: str
    """What an engine is called that has no name of its own."""
    instance_id: str
    worker_id: int
    lifetime_id: str


class DiscoveryServicer:
    """Serves DiscoveryService for one engine."""

    def __init__(self, lifecycle: Lifecycle, identity: Identity) -> None:
        self._lifecycle = lifecycle
        self._identity = identity

    async def GetEngineInfo(self, request: pb.GetEngineInfoRequest, call: Call) -> pb.GetEngineInfoResponse:
        """The engine's facts."""
        config = self._lifecycle.engine_config()
        engine = self._lifecycle.engine
        named = engine if isinstance(engine, NamedEngine) else None
        return pb.GetEngineInfoResponse(
            config=config,
            engine_name=(named and named.engine_name) or self._identity.nameless,
            engine_version=(named and named.engine_version) or __version__,
            instance_id=self._identity.instance_id,
            worker_id=self._identity.worker_id,
            engine_lifetime_id=self._identity.lifetime_id,
            contract_revision=pb.CONTRACT_REVISION,
            minimum_client_revision=pb.MINIMUM_CLIENT_REVISION,
            maximum_client_revision=pb.CONTRACT_REVISION,
            schema_digest=pb.schema_digest(),
        )

    async def GetLoad(self, request: pb.GetLoadRequest, call: Call) -> pb.GetLoadResponse:
        """The load now."""
        return pb.GetLoadResponse(load=self._load())

    async def WatchLoad(
        self, request: pb.WatchLoadRequest, call: Call
    ) -> AsyncIterator[pb.WatchLoadResponse]:
        """The load now and after every change, until the server has stopped."""
        interval = request.min_interval_ms if request.HasField("min_interval_ms") else DEFAULT_INTERVAL_MS
        if interval < SHORTEST_INTERVAL_MS:
            raise InvalidRequest(
                f"min_interval_ms: too short, got {interval}, allowed {SHORTEST_INTERVAL_MS} or more",
                field="min_interval_ms",
            )
        last: pb.Load | None = None
        while last is None or last.state != pb.ENGINE_STATE_STOPPED:
            load = self._load()
            if load != last:
                yield pb.WatchLoadResponse(load=load)
                last = load
            await asyncio.sleep(interval / 1000)

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, call: Call
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        """Manifest first, then the files unless the caller has them."""
        self._lifecycle.engine_config()
        tokenizer = self._lifecycle.engine.tokenizer()
        if tokenizer is None:
            raise ModelNotFound(
                "this engine offers no tokenizer; give the backend a folder with one (--tokenizer)"
            )
        manifest = manifest_of(tokenizer.files)
        yield pb.GetTokenizerResponse(manifest=manifest)
        if request.if_none_match != manifest.digest:
            for chunk in _chunks(tokenizer.files):
                yield pb.GetTokenizerResponse(chunk=chunk)

    def _load(self) -> pb.Load:
        load = self._lifecycle.load()
        load.engine_lifetime_id = self._identity.lifetime_id
        return load


def manifest_of(files: Mapping[str, bytes]) -> pb.TokenizerManifest:
    """Names, sizes and digests, in name order."""
    entries = [
        pb.TokenizerFile(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in sorted(files.items())
    ]
    lines = "".join(f"{entry.name}\0{entry.size}\0{entry.sha256}\n" for entry in entries)
    return pb.TokenizerManifest(digest=hashlib.sha256(lines.encode()).hexdigest(), files=entries)


def _chunks(files: Mapping[str, bytes]) -> Iterator[pb.TokenizerChunk]:
    for name, data in sorted(files.items()):
        for offset in range(0, len(data), CHUNK_BYTES):
            yield pb.TokenizerChunk(name=name, offset=offset, data=data[offset : offset + CHUNK_BYTES])
