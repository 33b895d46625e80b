"""An engine's load and prefix cache for as long as somebody wants to know, over all that happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.dynamo.kv_events import Event, KvMirror

LOAD_INTERVAL_MS: Final = 100
# How soon to look again for an engine that is away.
REWATCH_SECONDS: Final = 0.1
# These do not get better.
FINAL: Final = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)


async def follow_load(client: EngineClient, heard: Callable[[pb.Load], Awaitable[None]]) -> None:
    """Give every report to `heard`, and one with state DEAD while the engine does not answer.

    Raises RequestFailed when it will never answer.
    """
    while True:
        try:
            async for load in client.watch_load(LOAD_INTERVAL_MS):
                await heard(load)
        except RequestFailed as failure:
            if failure.code in FINAL:
                raise
        await heard(pb.Load(state=pb.ENGINE_STATE_DEAD))
        await asyncio.sleep(REWATCH_SECONDS)


async def follow_kv_events(
    client: EngineClient, dp_rank: int, publish: Callable[[Sequence[Event]], None]
) -> None:
    """Give what one rank caches and forgets to `publish`. Raises RequestFailed when it will never say."""
    mirror = KvMirror()
    while True:
        try:
            async for response in client.kv_events(dp_rank, mirror.sequence):
                if events := mirror.events(response.events):
                    publish(events)
        except RequestFailed as failure:
            if failure.code in FINAL:
                raise
        await asyncio.sleep(REWATCH_SECONDS)
