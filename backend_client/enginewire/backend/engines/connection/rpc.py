"""The engine's RPCs: messages in, and whatever goes wrong comes out as RequestFailed.

Answers are parsed here, because grpc.aio would log what it cannot parse and pass on None. Knows
nothing about what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed, from_rpc_error, violation

Answer = TypeVar("Answer", bound=Message)
GenerateCall = grpc.aio.UnaryStreamCall[bytes, bytes]
MultiplexedCall = grpc.aio.StreamStreamCall[bytes, bytes]

ENGINE: Final = "/enginewire.v1.EngineService/"
EMBEDDING: Final = "/enginewire.v1.EmbeddingService/"
DISCOVERY: Final = "/enginewire.v1.DiscoveryService/"
KV: Final = "/enginewire.v1.KvService/"
ADMIN: Final = "/enginewire.v1.AdminService/"

ASK_SECONDS: Final = 0.5
"""Between two questions for the load of an engine that cannot be watched."""
LOAD_SECONDS: Final = 10.0
"""An engine that takes longer to say its load is lost: it has to do so at once, whatever it computes."""


class EngineRpc:
    """The RPCs of one channel. Timeouts in seconds. Awaiting an answer raises RequestFailed."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._generate = channel.unary_stream(f"{ENGINE}Generate", as_is, as_is)
        self._multiplexed = channel.stream_stream(f"{ENGINE}GenerateMultiplexed", as_is, as_is)

    async def info(self, timeout: float | None = None) -> pb.GetEngineInfoResponse:
        """GetEngineInfo."""
        method = f"{DISCOVERY}GetEngineInfo"
        return await self._unary(method, pb.GetEngineInfoRequest(), pb.GetEngineInfoResponse, timeout)

    async def load(self, timeout: float | None = None) -> pb.Load:
        """GetLoad."""
        method = f"{DISCOVERY}GetLoad"
        return (await self._unary(method, pb.GetLoadRequest(), pb.GetLoadResponse, timeout)).load

    async def watch_load(self, min_interval_ms: int) -> AsyncGenerator[pb.Load, None]:
        """WatchLoad, until the engine ends it."""
        method = self._channel.unary_stream(f"{DISCOVERY}WatchLoad", as_is, as_is)
        request = pb.WatchLoadRequest(min_interval_ms=min_interval_ms)
        call = method(request.SerializeToString())
        try:
            async for data in call:
                yield parsed(pb.WatchLoadResponse, data).load
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    async def loads(self, min_interval_ms: int) -> AsyncGenerator[pb.Load, None]:
        """What WatchLoad says; an engine that has none is asked from time to time. Raises RequestFailed."""
        try:
            async with contextlib.aclosing(self.watch_load(min_interval_ms)) as loads:
                async for load in loads:
                    yield load
            return
        except RequestFailed as failure:
            if failure.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        while True:
            yield await self.load(LOAD_SECONDS)
            await asyncio.sleep(ASK_SECONDS)

    async def abort(self, request: pb.AbortRequest, timeout: float | None = None) -> pb.AbortResponse:
        """Abort."""
        return await self._unary(f"{ENGINE}Abort", request, pb.AbortResponse, timeout)

    async def adapters(self, timeout: float | None = None) -> pb.ListAdaptersResponse:
        """ListAdapters."""
        method = f"{ADMIN}ListAdapters"
        return await self._unary(method, pb.ListAdaptersRequest(), pb.ListAdaptersResponse, timeout)

    async def load_adapter(self, request: pb.LoadAdapterRequest, timeout: float) -> None:
        """LoadAdapter."""
        await self._unary(f"{ADMIN}LoadAdapter", request, pb.LoadAdapterResponse, timeout)

    async def unload_adapter(self, request: pb.UnloadAdapterRequest, timeout: float) -> None:
        """UnloadAdapter."""
        await self._unary(f"{ADMIN}UnloadAdapter", request, pb.UnloadAdapterResponse, timeout)

    async def embed(
        self, request: pb.EmbedRequest, timeout: float | None, metadata: Mapping[str, str]
    ) -> pb.EmbedResponse:
        """Embed."""
        return await self._unary(f"{EMBEDDING}Embed", request, pb.EmbedResponse, timeout, metadata)

    async def tokenizer(self) -> AsyncIterator[pb.GetTokenizerResponse]:
        """GetTokenizer, message by message."""
        method = self._channel.unary_stream(f"{DISCOVERY}GetTokenizer", as_is, as_is)
        try:
            async for data in method(pb.GetTokenizerRequest().SerializeToString()):
                yield parsed(pb.GetTokenizerResponse, data)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, is_accepted=True) from error

    async def kv_events(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        """SubscribeKvEvents, until the engine ends it."""
        call = self._channel.unary_stream(f"{KV}SubscribeKvEvents", as_is, as_is)(request.SerializeToString())
        try:
            async for data in call:
                yield parsed(pb.SubscribeKvEventsResponse, data)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    def generate(
        self, request: pb.GenerateRequest, timeout: float | None, metadata: Mapping[str, str]
    ) -> GenerateCall:
        """Generate. The call's messages are bytes, its errors gRPC's."""
        return self._generate(request.SerializeToString(), timeout=timeout, metadata=tuple(metadata.items()))

    def multiplexed(self) -> MultiplexedCall:
        """GenerateMultiplexed. The call's messages are bytes, its errors gRPC's."""
        return self._multiplexed()

    async def _unary(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        timeout: float | None,
        metadata: Mapping[str, str] | None = None,
    ) -> Answer:
        call = self._channel.unary_unary(method, as_is, as_is)
        try:
            data = await call(
                request.SerializeToString(), timeout=timeout, metadata=tuple((metadata or {}).items())
            )
            return parsed(answer, data)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


def parsed(message_class: type[Answer], data: bytes) -> Answer:
    """The message in `data`. Raises RequestFailed."""
    try:
        return message_class.FromString(data)
    except DecodeError as error:
        raise violation(f"bytes that are no {message_class.__name__}") from error


def as_is(data: bytes) -> bytes:
    """Bytes on their way from or to the wire."""
    return data
