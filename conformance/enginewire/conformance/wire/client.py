"""A client that records: every call becomes an Exchange, and no status is raised.

Unary calls are read like streams of one message, so that one class serves all RPCs and a server that
sends two is seen. Knows the methods by the contract's descriptors; judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError, Message

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Arrived, Exchange, Metadata, Sent
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.methods import GENERATE, Method, method_of
from enginewire.conformance.wire.violation import NotApplicable, Violation

Requests = AsyncIterator[Message | bytes]


class Call:
    """One RPC under way. Iterate it for the messages; afterwards `exchange` has the status."""

    def __init__(
        self, exchange: Exchange, rpc: grpc.aio.UnaryStreamCall[Any, bytes], method: Method | None
    ) -> None:
        self.exchange = exchange
        self._rpc = rpc
        self._method = method
        self._is_cancelled = False

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Message:
        try:
            payload = await self._rpc.read()
        except grpc.aio.AioRpcError:
            payload = grpc.aio.EOF
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            payload = grpc.aio.EOF
        if payload is grpc.aio.EOF:
            await self._end()
            raise StopAsyncIteration
        return self._arrive(cast(bytes, payload))

    async def accepted(self) -> bool:
        """Wait for the initial metadata; False when the call ended without."""
        try:
            metadata = await self._rpc.initial_metadata()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # we are inside a task
                raise
            return False
        self.exchange.accepted_at = self.exchange.accepted_at or time.monotonic()
        self.exchange.initial_metadata = tuple(metadata)
        return True

    async def failed_unread(self) -> bool:
        """Whether a call of which nothing was read has ended with another status than OK."""
        return self._rpc.done() and await self._rpc.code() is not grpc.StatusCode.OK

    async def finish(self) -> Exchange:
        """Read to the end."""
        async for _ in self:
            pass
        return self.exchange

    def cancel(self) -> None:
        """Cancel the call as a caller that goes away would."""
        self._is_cancelled = True
        self._rpc.cancel()

    def _arrive(self, payload: bytes) -> Message:
        message = self._method.response() if self._method else pb.GetLoadRequest()
        try:
            message.ParseFromString(payload)
        except DecodeError:
            raise Violation(
                f"{self.exchange.method} sent bytes that do not parse", seen=payload[:64]
            ) from None
        self.exchange.arrived.append(Arrived(time.monotonic(), message, len(payload)))
        return message

    async def _end(self) -> None:
        if self.exchange.code is not None:
            return
        self.exchange.ended_at = time.monotonic()
        self.exchange.code = await self._rpc.code()
        self.exchange.initial_metadata = tuple(await self._rpc.initial_metadata() or ())
        self.exchange.text = await self._rpc.details() or ""
        self.exchange.trailing_metadata = tuple(await self._rpc.trailing_metadata() or ())


class Client:
    """Calls over one channel, each recorded in `exchanges`. Seconds everywhere."""

    def __init__(
        self, channel: grpc.aio.Channel, *, metadata: Metadata = (), timeout: float = 30.0, target: str = ""
    ) -> None:
        self.timeout = timeout
        self.target = target
        self.is_crowded = False
        """Others use the engine as well: its load says nothing about the requests of this client."""
        self.exchanges: list[Exchange] = []
        self.calls: list[Call] = []
        self._channel = channel
        self._metadata = metadata
        self._is_closed = False

    def close(self) -> None:
        """Call nobody any more: what goes on behind the end of a check must not be in the way of others."""
        self._is_closed = True

    def call(
        self,
        name: str,
        request: Message | bytes | Requests,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        compression: grpc.Compression | None = None,
    ) -> Call:
        """Start an RPC: `Service.Method` of the contract, or a raw `/package.Service/Method`.

        The request is a message, its bytes (which may be malformed), or an async iterator of either
        for a method that takes a stream. NotApplicable when the client is closed.
        """
        if self._is_closed:
            raise NotApplicable("whoever calls has ended")
        method = method_of(name)
        deadline = self.timeout if timeout is None else timeout
        everything = self._metadata + metadata
        recorded = request if isinstance(request, Message | bytes) else None
        exchange = Exchange(name, recorded, everything, deadline, time.monotonic(), target=self.target)
        exchange.is_compressed = compression is not None
        if not isinstance(request, Message | bytes):
            request = _noted(request, exchange)
        path = method.path if method else name
        settings = {"timeout": deadline, "metadata": everything or None, "compression": compression}
        rpc = self._start(path, request, settings)
        call = Call(exchange, rpc, method)
        self.exchanges.append(exchange)
        self.calls.append(call)
        return call

    def _start(
        self, path: str, request: Message | bytes | Requests, settings: dict[str, Any]
    ) -> grpc.aio.UnaryStreamCall[Any, bytes]:
        if isinstance(request, Message | bytes):
            return self._channel.unary_stream(path, request_serializer=_serialize)(request, **settings)
        # A call with a stream of requests is read in the same way.
        call: object = self._channel.stream_stream(path, request_serializer=_serialize)(request, **settings)
        return cast("grpc.aio.UnaryStreamCall[Any, bytes]", call)

    async def ask(self, name: str, request: Message | bytes, **options: float | Metadata) -> Exchange:
        """An RPC from start to end."""
        return await self.call(name, request, **options).finish()  # type: ignore[arg-type]  # same options

    def generate(self, request: pb.GenerateRequest | bytes, **options: float | Metadata) -> Call:
        """Start a Generate."""
        return self.call(GENERATE, request, **options)  # type: ignore[arg-type]  # same options

    async def info(self) -> pb.GetEngineInfoResponse:
        """The engine's facts; a failure is a Violation."""
        exchange = await self.ask("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest())
        return cast(pb.GetEngineInfoResponse, exchange.response())

    async def load(self) -> pb.Load:
        """The load; a failure is a Violation. NotApplicable where it is that of others."""
        if self.is_crowded:
            raise NotApplicable("others use the engine as well")
        exchange = await self.ask("DiscoveryService.GetLoad", pb.GetLoadRequest())
        return cast(pb.GetLoadResponse, exchange.response()).load

    async def abort(self, request_ids: Sequence[str], reason: str = "") -> list[pb.AbortResult]:
        """One outcome per id; a failure is a Violation."""
        asked = pb.AbortRequest(request_ids=request_ids, reason=reason)
        exchange = await self.ask("EngineService.Abort", asked)
        return list(cast(pb.AbortResponse, exchange.response()).results)

    async def health(self, service: str = health_types.READINESS) -> int:
        """The status of a service as in `health_types`; a failure is a Violation."""
        exchange = await self.ask(health_types.CHECK, health_types.request(service))
        return health_types.status_of(exchange.response())


async def _noted(requests: Requests, exchange: Exchange) -> Requests:
    async for request in requests:
        exchange.sent.append(Sent(time.monotonic(), request))
        yield request


def _serialize(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
