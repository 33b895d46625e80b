"""The way to one engine: pinged as often as this life of the engine bears it, and believed by today's files.

Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import grpc

from enginewire.backend.engines.rpc import EngineRpc
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import Trust

OpenChannel = Callable[[str, int | None, Trust], grpc.aio.Channel]
"""As enginewire.calling.channel.open_channel."""


class Dialled:
    """`rpc` is for what comes next; what has begun goes on over the channel that it began on."""

    def __init__(self, target: str, trust: Trust, open_channel: OpenChannel = open_channel) -> None:
        self.target = target
        self.trust = trust
        self._open_channel = open_channel
        # Until the engine has said how often it bears pings there are next to none.
        self._first = self._channel = self._open()
        self._ping_interval_ms: int | None = None
        self._left: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        self.rpc = EngineRpc(self._channel)

    def ping_as_borne(self, interval_ms: int | None) -> None:
        """Go on over a channel that pings so often at most."""
        if interval_ms == self._ping_interval_ms:
            return
        before, self._ping_interval_ms = self._channel, interval_ms
        self._channel = self._first if interval_ms is None else self._open(interval_ms)
        self.rpc = EngineRpc(self._channel)
        # The first one may be watched; one between was the way to an engine that is gone.
        if before is not self._first:
            self._leave(before)

    def renew(self) -> None:
        """Connect with files that have changed, if there is no connection to lose. Raises UntrustedPath."""
        self.trust.check(self.target)
        if self.trust.tls is None or self.trust.tls.stamps == self._stamps or self._is_connected():
            return
        old = {self._first, self._channel}
        self._first = self._channel = self._open()
        self._ping_interval_ms = None
        self.rpc = EngineRpc(self._channel)
        for channel in old:
            self._leave(channel)

    async def close(self) -> None:
        """End every call."""
        for channel in {self._channel, self._first, *self._left.values()}:
            await channel.close()

    def _leave(self, channel: grpc.aio.Channel) -> None:
        """Close it when what has begun over it is over.

        A channel that is closed before that cancels whoever waits for a call over it.
        """
        task = asyncio.create_task(channel.close(math.inf), name=f"leave a channel to {self.target}")
        self._left[task] = channel
        task.add_done_callback(self._left.pop)

    def _open(self, interval_ms: int | None = None) -> grpc.aio.Channel:
        if self.trust.tls is not None:
            self._stamps = self.trust.tls.stamps
        return self._open_channel(self.target, interval_ms, self.trust)

    def _is_connected(self) -> bool:
        states = {channel.get_state() for channel in (self._first, self._channel)}
        return grpc.ChannelConnectivity.READY in states
