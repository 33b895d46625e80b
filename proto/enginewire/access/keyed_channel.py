"""A gRPC channel whose calls all bring a key, whichever RPC they are.

gRPC sends credentials of calls over TLS alone, and its interceptors stand between a stream and each of its
messages: what comes with a call is therefore added where the call begins. Knows nothing about targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar, cast

import grpc

from enginewire.access.target_key import TargetKey

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")
Method = TypeVar("Method", bound=Callable[..., object])
Serializer = Callable[[Asked], bytes] | None
Deserializer = Callable[[bytes], Answered] | None
Pairs = Iterable[tuple[str, str | bytes]]


class KeyedChannel(grpc.aio.Channel):
    """The channel in another one's place."""

    def __init__(self, channel: grpc.aio.Channel, key: TargetKey) -> None:
        self._channel = channel
        self._key = key

    def unary_unary(  # noqa: D102
        self,
        method: str,
        request_serializer: Serializer[Asked] = None,
        response_deserializer: Deserializer[Answered] = None,
        _registered_method: bool | None = False,
    ) -> grpc.aio.UnaryUnaryMultiCallable[Asked, Answered]:
        return self._keyed(self._channel.unary_unary(method, request_serializer, response_deserializer))

    def unary_stream(  # noqa: D102
        self,
        method: str,
        request_serializer: Serializer[Asked] = None,
        response_deserializer: Deserializer[Answered] = None,
        _registered_method: bool | None = False,
    ) -> grpc.aio.UnaryStreamMultiCallable[Asked, Answered]:
        return self._keyed(self._channel.unary_stream(method, request_serializer, response_deserializer))

    def stream_unary(  # noqa: D102
        self,
        method: str,
        request_serializer: Serializer[Asked] = None,
        response_deserializer: Deserializer[Answered] = None,
        _registered_method: bool | None = False,
    ) -> grpc.aio.StreamUnaryMultiCallable[Asked, Answered]:
        return self._keyed(self._channel.stream_unary(method, request_serializer, response_deserializer))

    def stream_stream(  # noqa: D102
        self,
        method: str,
        request_serializer: Serializer[Asked] = None,
        response_deserializer: Deserializer[Answered] = None,
        _registered_method: bool | None = False,
    ) -> grpc.aio.StreamStreamMultiCallable[Asked, Answered]:
        return self._keyed(self._channel.stream_stream(method, request_serializer, response_deserializer))

    def _keyed(self, method: Method) -> Method:
        def call(*given: object, metadata: Pairs | None = None, **options: object) -> object:
            return method(*given, metadata=(*(metadata or ()), self._key.authorization), **options)

        return cast(Method, call)

    async def close(self, grace: float | None = None) -> None:  # noqa: D102
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: D102
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:  # noqa: D102
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:  # noqa: D102
        await self._channel.channel_ready()

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.__aexit__(kind, error, trace)
