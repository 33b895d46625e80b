"""Whether a server is at an address: something listens there, and is no proxy with nobody behind it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.exchange import Exchange

PATIENCE_SECONDS: Final = 4.0
"""A server that does not answer for so long is gone; one that restarts may be back."""

POLL_SECONDS: Final = 0.1

NOTHING: Final = "nothing has listened at its address for {seconds:.0f} s"
NOBODY: Final = (
    "what listens at its address has answered UNAVAILABLE for {seconds:.0f} s: {text} "
    "(an engine that still loads says so by the reason NOT_STARTED, and is waited for)"
)


async def absence(connection: Connection, seconds: float | None = None) -> str:
    """How a server stays away for so long, in words; empty as soon as it answers, whatever it says."""
    seconds = PATIENCE_SECONDS if seconds is None else seconds
    deadline = time.monotonic() + seconds
    while why := await _why_not(connection, seconds):
        if time.monotonic() > deadline:
            return why
        await asyncio.sleep(POLL_SECONDS)
    return ""


def is_loading(exchange: Exchange) -> bool:
    """Whether it says that the engine has not started."""
    reason = exchange.detail.reason if exchange.detail else pb.ERROR_REASON_UNSPECIFIED
    return exchange.code is grpc.StatusCode.UNAVAILABLE and reason == pb.ERROR_REASON_NOT_STARTED


async def _why_not(connection: Connection, seconds: float) -> str:
    if not await connection.accepts():
        return NOTHING.format(seconds=seconds)
    async with connection.channel() as channel:
        client = Client(channel, metadata=connection.metadata, timeout=seconds)
        exchange = await client.ask("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest())
    if exchange.code is grpc.StatusCode.UNAVAILABLE:
        return NOBODY.format(seconds=seconds, text=exchange.text)
    return ""
