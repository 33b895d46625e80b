"""`--upstream`: an engine in another process, in any language, that serves the profile `bare`.

`Upstream` calls it once for each request; `UpstreamEngine` is what the server drives. The queue is here: the
engine sees no more choices than it has slots for. When it is gone, so is this server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.server.engines.base import BaseEngine
from enginewire.server.engines.interface import GenerateContext, Item
from enginewire.server.engines.iterator_driver import CANCEL_GRACE_SECONDS, IteratorDriver
from enginewire.server.engines.step_streams import open_choices
from enginewire.server.engines.upstream.call import UpstreamCall, completed
from enginewire.server.engines.upstream.connection import Connection
from enginewire.server.engines.upstream.facts import config_of
from enginewire.server.engines.upstream.failure import failure_of, is_lost
from enginewire.server.engines.upstream.options import UpstreamOptions
from enginewire.server.engines.upstream.watch import Watch
from enginewire.server.failures import Draining, EngineDead, Stuck
from enginewire.server.validation.payloads import prompt_length

MOST_NAMED: Final = 100
"""Characters of a caller's id within the one that the engine sees, which has at most 128."""


class Upstream(BaseEngine):
    """The engine behind the connection, one call for each request."""

    def __init__(self, options: UpstreamOptions) -> None:
        super().__init__()
        self._options = options
        self._connection: Connection | None = None
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._calls: dict[GenerateContext, UpstreamCall] = {}
        self._counts = pb.Load()

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Wait for the engine, and take its facts. Raises NoUpstream and NotBare."""
        self._connection = Connection(self._options)
        info = await self._connection.found()
        self.config = config_of(info, self._options.max_num_seqs)
        self.engine_name, self.engine_version = info.engine_name, info.engine_version
        self._slots.num_slots = self.config.max_num_seqs
        self._watch = Watch(self._connection, info, self._end_all)
        self._watching = asyncio.create_task(self._watch.run(self._after_look), name="upstream watch")
        return self.config

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Item]:
        """The engine's outputs, once there is a slot for every choice."""
        async with self._turn(request):
            call = self._begin(request, context)
            try:
                while (item := await call.next()) is not None:
                    yield item
            except grpc.aio.AioRpcError as error:
                raise self._failure_of(error, call) from error
            finally:
                self._end(call, context)

    async def abort(self, context: GenerateContext) -> None:
        """Tell the engine; the driver cancels the call if that does not help soon."""
        call = self._calls.get(context)
        if call is not None and self._connection is not None:
            await self._connection.abort(call.name, CANCEL_GRACE_SECONDS)

    async def drain(self) -> None:
        """Hand back what waits."""
        self._slots.refuse_waiting(lambda: Draining("the server is draining"))

    async def cleanup(self) -> None:
        """End every call. The engine itself is not ours to end."""
        if self._watching is not None:
            self._watching.cancel()
        if self._watch is not None:
            self._watch.forget()
        if self._connection is not None:
            await self._connection.close()

    def load(self) -> pb.Load:
        """Requests as they are known here, KV blocks as the engine last reported them."""
        load = pb.Load()
        load.CopyFrom(self._counts)
        load.running, load.waiting = self._slots.num_running, self._slots.num_waiting
        load.tokens_generated += sum(call.num_tokens for call in self._calls.values())
        load.kv_blocks_total = self.config.total_kv_blocks
        if self._watch is not None:
            reported = self._watch.load
            load.kv_blocks_used = min(reported.kv_blocks_used, load.kv_blocks_total)
            load.kv_blocks_cached = min(reported.kv_blocks_cached, load.kv_blocks_total)
        return load

    @property
    def is_dead(self) -> bool:
        """The engine is gone, for good."""
        return self._watch is not None and bool(self._watch.death)

    def has_begun(self, context: GenerateContext) -> bool:
        """False for a request that waits for a slot."""
        return context in self._calls

    def stalled_for(self) -> float:
        """Seconds for which the engine owes an answer; infinite when it is gone."""
        return self._watch.stalled_for() if self._watch else 0.0

    @asynccontextmanager
    async def _turn(self, request: pb.PreprocessedRequest) -> AsyncIterator[None]:
        waiting_tokens = prompt_length(request)
        self._counts.waiting_tokens += waiting_tokens
        try:
            async with self._slots.take(open_choices(request, self.config.role)):
                self._counts.waiting_tokens -= waiting_tokens
                waiting_tokens = 0
                yield
        finally:
            self._counts.waiting_tokens -= waiting_tokens

    def _begin(self, request: pb.PreprocessedRequest, context: GenerateContext) -> UpstreamCall:
        assert self._connection is not None, "requests come after the start"
        if self.is_dead:
            raise dead()
        # Never used twice: the end of a call and the next one of the same id may meet at the engine.
        name = f"{context.request_id[:MOST_NAMED]}:{next(self._numbers)}"
        call = UpstreamCall(self._connection, completed(name, request, self.config), context)
        self._calls[context] = call
        context.running_since = time.monotonic()
        self._look_at_blocks()
        return call

    def _end(self, call: UpstreamCall, context: GenerateContext) -> None:
        call.leave()
        del self._calls[context]
        self._counts.requests_finished += 1
        self._counts.tokens_generated += call.num_tokens
        self._look_at_blocks()

    def _failure_of(self, error: grpc.aio.AioRpcError, call: UpstreamCall) -> Exception:
        if is_lost(error) and self._watch is not None:
            self._watch.look()
        return failure_of(error, call.name)

    def _look_at_blocks(self) -> None:
        if self._watch is not None and self.config.HasField("total_kv_blocks"):
            self._watch.look()

    def _after_look(self) -> bool:
        """End calls in which nothing comes any more. True while blocks are held that should soon be free."""
        longest = self._options.silence_timeout
        latest = time.monotonic() - longest
        for call in [call for call in self._calls.values() if call.heard_at < latest]:
            call.fail(Stuck(f"the engine has sent nothing for {longest:g} s"))
        return not self._calls and self._watch is not None and self._watch.load.kv_blocks_used > 0

    def _end_all(self) -> None:
        """The engine is gone: nobody shall wait for it."""
        self._slots.refuse_waiting(dead)
        for call in list(self._calls.values()):
            call.fail(dead())


class UpstreamEngine(IteratorDriver):
    """An `Upstream` as the server drives it."""

    def __init__(self, options: UpstreamOptions) -> None:
        self._upstream = Upstream(options)
        super().__init__(self._upstream)

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Refuse what can never be served any more."""
        if self._upstream.is_dead:
            raise dead()
        super().submit(request, context)

    async def abort(self, context: GenerateContext) -> None:
        """What waits here ends at once, and the engine never hears of it."""
        task = self._tasks.get(context)
        if task is not None and not self._upstream.has_begun(context):
            task.cancel()
        else:
            await super().abort(context)

    def stalled_for(self) -> float:
        """Seconds for which the engine owes an answer; infinite when it is gone."""
        return self._upstream.stalled_for()


def dead() -> EngineDead:
    """The failure of every request of an engine that is gone."""
    return EngineDead("the engine died")
