"""The RPCs of KvService: where cache events come from, and the events. All read-only."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.server.engines.interface import PrefixCacheEngine
from enginewire.server.failures import Unsupported
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.handlers import Call


class KvServicer:
    """Serves KvService for one engine."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def GetKvEventSources(
        self, request: pb.GetKvEventSourcesRequest, call: Call
    ) -> pb.GetKvEventSourcesResponse:
        """One source per rank."""
        self._check_capability()
        return pb.GetKvEventSourcesResponse(sources=await self._lifecycle.engine.kv_event_sources())

    async def SubscribeKvEvents(
        self, request: pb.SubscribeKvEventsRequest, call: Call
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        """A snapshot or a replay, then everything that happens until the engine is cleaned up."""
        self._check_capability()
        engine = self._lifecycle.engine
        if not isinstance(engine, PrefixCacheEngine):
            raise Unsupported("the events of this engine come from the endpoints of GetKvEventSources")
        after = request.after_sequence if request.HasField("after_sequence") else None
        async with contextlib.aclosing(engine.subscribe_kv_events(request.dp_rank, after)) as messages:
            async for message in messages:
                yield message

    def _check_capability(self) -> None:
        if not self._lifecycle.engine_config().capabilities.kv_events:
            raise Unsupported("this engine has no kv_events")
