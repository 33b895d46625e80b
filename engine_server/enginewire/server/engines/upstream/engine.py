"""`--upstream`: an engine in another process, in any language, that serves the profile `bare`.

`Upstream` calls it once for each request; `UpstreamEngine` is what the server drives.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from itertools import count
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, Item
from enginewire.server.engines.iterator_driver import CANCEL_GRACE_SECONDS
from enginewire.server.engines.remote.engine import RemoteDriver, RemoteEngine
from enginewire.server.engines.remote.options import RemoteOptions
from enginewire.server.engines.remote.watch import Lost, Replaced
from enginewire.server.engines.upstream.call import UpstreamCall, completed
from enginewire.server.engines.upstream.connection import Connection
from enginewire.server.engines.upstream.facts import config_of
from enginewire.server.engines.upstream.failure import failure_of, is_lost, shown

MOST_NAMED: Final = 100
"""Characters of a caller's id within the one that the engine sees, which has at most 128."""

log = logging.getLogger(__name__)


class Upstream(RemoteEngine[UpstreamCall]):
    """The engine behind the connection, one call for each request."""

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options)
        self._connection: Connection | None = None
        self._info = pb.GetEngineInfoResponse()
        self._numbers = count(1)
        self._reported = pb.Load()
        """What the engine last said about its KV blocks."""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Wait for the engine, and take its facts. Raises NoUpstream and NotBare."""
        self._connection = Connection(self._options)
        self._info = info = await self._connection.found()
        self.config = config_of(info, self._options.max_num_seqs)
        self.engine_name, self.engine_version = info.engine_name, info.engine_version
        self.watch_over(self._look)
        return self.config

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Item]:
        """The engine's outputs, once there is a slot for every choice."""
        async with self.turn(request, context, lambda: self._begin(request, context)) as call:
            self._look_at_blocks()
            try:
                while (item := await call.next()) is not None:
                    yield item
            except grpc.aio.AioRpcError as error:
                if is_lost(error):
                    await self.looked()
                raise failure_of(error, call.name) from error
            finally:
                call.leave()
                self._look_at_blocks()

    async def abort(self, context: GenerateContext) -> None:
        """Tell the engine; the driver cancels the call if that does not help soon."""
        call = self._calls.get(context)
        if call is not None and self._connection is not None:
            await self._connection.abort(call.name, CANCEL_GRACE_SECONDS)

    async def disconnect(self) -> None:
        """End every call. The blocks that the engine holds are no longer this server's."""
        self._reported = pb.Load()
        if self._connection is not None:
            await self._connection.close()

    def load(self) -> pb.Load:
        """Requests as they are known here, KV blocks as the engine last reported them."""
        load = super().load()
        load.kv_blocks_total = self.config.total_kv_blocks
        load.kv_blocks_used = min(self._reported.kv_blocks_used, load.kv_blocks_total)
        load.kv_blocks_cached = min(self._reported.kv_blocks_cached, load.kv_blocks_total)
        return load

    def has_more_to_see(self) -> bool:
        """True while blocks are held that should soon be free."""
        return not self._calls and self._reported.kv_blocks_used > 0

    def _begin(self, request: pb.PreprocessedRequest, context: GenerateContext) -> UpstreamCall:
        assert self._connection is not None, "requests come after the start"
        # Never used twice: the end of a call and the next one of the same id may meet at the engine.
        name = f"{context.request_id[:MOST_NAMED]}:{next(self._numbers)}"
        return UpstreamCall(self._connection, completed(name, request, self.config), context)

    def _look_at_blocks(self) -> None:
        if self.config.HasField("total_kv_blocks"):
            self.look()

    async def _look(self, seconds: float | None) -> None:
        """Another answer of GetEngineInfo is another life of the engine."""
        assert self._connection is not None, "looked at after the start"
        try:
            if await self._connection.info(seconds) != self._info:
                raise Replaced
            if self._info.config.HasField("total_kv_blocks"):
                self._reported = await self._connection.load(seconds)
        except grpc.aio.AioRpcError as error:
            if is_lost(error):
                raise Lost(shown(error)) from error
            log.warning("the engine answers with %s", shown(error))


class UpstreamEngine(RemoteDriver):
    """An `Upstream` as the server drives it."""

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(Upstream(options))
