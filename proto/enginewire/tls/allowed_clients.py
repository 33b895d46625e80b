"""gRPC calls of callers whose certificate has a wrong name are refused, whatever RPC it is.

gRPC itself checks who has signed a certificate and not whose it is. Knows nothing about RPCs.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, TypeAlias

import grpc

from enginewire.tls.listener import REFUSAL, ListenerTls

AnyCall = grpc.aio.ServicerContext[Any, Any]  # whatever its messages are, it is refused in the same way
AnyHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[..., Any]
Refuse = Callable[[AnyCall, str], Awaitable[NoReturn]]
"""Ends a call with PERMISSION_DENIED and the details of whoever serves it; takes the reason for people."""

NAMES: Final = "x509_subject_alternative_name"


class AllowedClients(grpc.aio.ServerInterceptor):
    """Stands before every RPC of a server."""

    def __init__(self, tls: ListenerTls, refuse: Refuse) -> None:
        self._tls = tls
        self._refuse = refuse

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[AnyHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> AnyHandler | None:
        """See grpc.aio: the same RPC behind the check."""
        handler = await continuation(handler_call_details)
        # An RPC that is not served has none.
        return handler and self._checked(handler)

    def _checked(self, handler: AnyHandler) -> AnyHandler:
        read, write = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._answer(handler.unary_unary), read, write)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._answer(handler.stream_unary), read, write)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream), read, write)
        assert handler.stream_stream, "there are four kinds of RPCs"
        return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream), read, write)

    def _answer(self, behaviour: Behaviour) -> Behaviour:
        async def checked(request: Any, call: AnyCall) -> Any:
            await self._check(call)
            return await behaviour(request, call)

        return checked

    def _stream(self, behaviour: Behaviour) -> Behaviour:
        """gRPC asks for one of two kinds, and takes no other: messages that are yielded, or written."""

        async def yielding(request: Any, call: AnyCall) -> AsyncIterator[Any]:
            await self._check(call)
            async with contextlib.aclosing(behaviour(request, call)) as messages:
                async for message in messages:
                    yield message

        return yielding if inspect.isasyncgenfunction(behaviour) else self._answer(behaviour)

    async def _check(self, call: AnyCall) -> None:
        names = call.auth_context().get(NAMES, ())
        if not self._tls.allows(bytes(name).decode("utf-8", "replace") for name in names):
            await self._refuse(call, REFUSAL)
