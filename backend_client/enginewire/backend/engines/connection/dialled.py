"""The way to one engine: pinged as often as this life of the engine bears it, and believed by today's files.

Knows nothing about requests.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import grpc

from enginewire.backend.engines.connection.rpc import EngineRpc
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import Trust

OpenChannel = Callable[[str, int | None, Trust], grpc.aio.Channel]
"""As enginewire.calling.channel.open_channel."""


class Dialled:
    """`rpc` is for what comes next; what has begun goes on over the channel that it began on.

    So a channel is not closed when another one takes its place, which would cancel whoever waits for a call
    over it: it closes itself when nobody has its `rpc` any more.
    """

    def __init__(self, target: str, trust: Trust, open_channel: OpenChannel = open_channel) -> None:
        self.target = target
        self.trust = trust
        self._open_channel = open_channel
        self._opened = WeakSet[grpc.aio.Channel]()
        # Until the engine has said how often it bears pings there are next to none.
        self._first = self._channel = self._open()
        self._ping_interval_ms: int | None = None
        self.rpc = EngineRpc(self._channel)

    def ping_as_borne(self, interval_ms: int | None) -> None:
        """Go on over a channel that pings so often at most."""
        if interval_ms == self._ping_interval_ms:
            return
        self._ping_interval_ms = interval_ms
        self._channel = self._first if interval_ms is None else self._open(interval_ms)
        self.rpc = EngineRpc(self._channel)

    def renew(self) -> None:
        """Connect with files that have changed, if there is no connection to lose. Raises UntrustedPath."""
        self.trust.check(self.target)
        if self.trust.tls is None or self.trust.tls.stamps == self._stamps or self._is_connected():
            return
        self._first = self._channel = self._open()
        self._ping_interval_ms = None
        self.rpc = EngineRpc(self._channel)

    async def close(self) -> None:
        """End every call."""
        for channel in [*self._opened]:
            await channel.close()

    def _open(self, interval_ms: int | None = None) -> grpc.aio.Channel:
        if self.trust.tls is not None:
            self._stamps = self.trust.tls.stamps
        channel = self._open_channel(self.target, interval_ms, self.trust)
        self._opened.add(channel)
        return channel

    def _is_connected(self) -> bool:
        states = {channel.get_state() for channel in (self._first, self._channel)}
        return grpc.ChannelConnectivity.READY in states
