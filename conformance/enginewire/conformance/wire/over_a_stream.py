"""A Generate that travels as the only request of a multiplexed stream, and looks like a call of its own.

What judges a Generate so judges GenerateMultiplexed too. Frames are translated, not judged.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import DETAILS_KEY, Arrived, Exchange, Metadata
from enginewire.conformance.wire.methods import GENERATE
from enginewire.conformance.wire.multiplexed import Handle, Multiplexed

HANDLE: Final = 7
CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class CallOverStream:
    """Iterate it for the messages that a Generate would have brought; afterwards `exchange` has the status.

    The real exchange, which a report shows, is that of the stream.
    """

    def __init__(
        self, client: Client, request: pb.GenerateRequest, *, timeout: float, metadata: Metadata = ()
    ) -> None:
        self._stream = Multiplexed(client, timeout)
        self._stream.send(self._stream.submitted(HANDLE, request, timeout, metadata))
        self._stream.half_close()
        started_at = self._stream.exchange.started_at
        self.exchange = Exchange(GENERATE, request, timeout=timeout, started_at=started_at)
        self._reading = asyncio.Lock()
        self._num_told = 0
        self._num_outputs = 0
        self._num_events = 0

    def __aiter__(self) -> CallOverStream:
        return self

    async def __anext__(self) -> pb.GenerateResponse:
        while len(self.exchange.arrived) <= self._num_told:
            if not await self._read():
                raise StopAsyncIteration
        self._num_told += 1
        message = self.exchange.arrived[self._num_told - 1].message
        assert isinstance(message, pb.GenerateResponse)
        return message

    async def accepted(self) -> bool:
        """Wait for `Accepted`; False when the request ended without."""
        while not self._handle.accepted and await self._read():
            pass
        return bool(self._handle.accepted)

    async def failed_unread(self) -> bool:
        """Whether it has ended with another status than OK."""
        return self.exchange.code not in (None, grpc.StatusCode.OK)

    async def finish(self) -> Exchange:
        """Read to the end."""
        async for _ in self:
            pass
        return self.exchange

    @property
    def num_accepted(self) -> int:
        """How often `Accepted` came."""
        return len(self._handle.accepted)

    def cancel(self) -> None:
        """Cancel the stream as a caller that goes away would."""
        self._stream.call.cancel()

    @property
    def _handle(self) -> Handle:
        return self._stream.handle(HANDLE)

    async def _read(self) -> bool:
        """The next frame; False at the end of the stream, which is that of the request."""
        async with self._reading:
            if self.exchange.code is not None:
                return False
            if await self._stream.read() is None:
                self._end()
                return False
            self._translate()
            return True

    def _translate(self) -> None:
        """What came of the handle since the last frame."""
        handle, now = self._handle, time.monotonic()
        if handle.accepted and self.exchange.accepted_at is None:
            self.exchange.accepted_at = now
        new = [pb.GenerateResponse(engine_event=event) for event in handle.events[self._num_events :]]
        new += [pb.GenerateResponse(output=output) for output in handle.outputs[self._num_outputs :]]
        self._num_events, self._num_outputs = len(handle.events), len(handle.outputs)
        for response in new:
            response.request_id = handle.request_id
            if not self.exchange.arrived and handle.accepted:
                response.engine_lifetime_id = handle.accepted[0].engine_lifetime_id
            self.exchange.arrived.append(Arrived(now, response, response.ByteSize()))

    def _end(self) -> None:
        of_stream, status = self._stream.exchange, self._handle.status
        self.exchange.ended_at = of_stream.ended_at
        if self._handle.accepted:
            self.exchange.initial_metadata = of_stream.initial_metadata
        if status is None:
            self.exchange.code, self.exchange.text = of_stream.code, of_stream.text
            self.exchange.trailing_metadata = of_stream.trailing_metadata
        else:
            self.exchange.code = CODES.get(status.code, grpc.StatusCode.UNKNOWN)
            self.exchange.text = status.message
            self.exchange.trailing_metadata = ((DETAILS_KEY, status.SerializeToString()),)
