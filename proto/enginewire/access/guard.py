"""The guard before every RPC of a server: keys and roles, the names in certificates, who is called for whom.

gRPC itself checks who has signed a certificate and not whose it is, and knows nothing of keys.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import grpc

from enginewire.access.access import Access, Denied, Forbidden, bearer
from enginewire.access.caller import Caller, serve_for
from enginewire.access.roles import Role, role_of
from enginewire.tls.listener import REFUSAL

AnyCall = grpc.aio.ServicerContext[Any, Any]  # whatever its messages are, it is refused in the same way
AnyHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[..., Any]
Refuse = Callable[[AnyCall, Denied], Awaitable[NoReturn]]
"""Ends a call with a status and the details of whoever serves it."""

AUTHORIZATION: Final = "authorization"
NAMES: Final = "x509_subject_alternative_name"
SUBJECT: Final = "x509_subject"


class Guard(grpc.aio.ServerInterceptor):
    """Stands before every RPC of a server."""

    def __init__(self, access: Access, refuse: Refuse) -> None:
        self._access = access
        self._refuse = refuse

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[AnyHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> AnyHandler | None:
        """See grpc.aio: the same RPC, or one that refuses before it has read anything."""
        handler = await continuation(handler_call_details)
        # An RPC that is not served has none.
        if handler is None:
            return None
        role = role_of(str(handler_call_details.method))
        try:
            pairs = handler_call_details.invocation_metadata or ()
            brought = bearer(str(value) for key, value in pairs if key == AUTHORIZATION)
            caller = self._access.caller_with(brought, role)
        except Denied as denied:
            return self._refusal(denied)
        # The task that serves the call is this one.
        serve_for(caller)
        return self._checked(handler, caller, role) if self._access.tells_certificates_apart else handler

    def _refusal(self, denied: Denied) -> AnyHandler:
        async def refuse(_: AsyncIterator[bytes], call: AnyCall) -> None:
            await self._refuse(call, denied)

        # Of the four kinds the one that does not wait for a message, whatever it was called as.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _checked(self, handler: AnyHandler, caller: Caller, role: Role) -> AnyHandler:
        read, write = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary:
            behaviour = self._answer(handler.unary_unary, caller, role)
            return grpc.unary_unary_rpc_method_handler(behaviour, read, write)
        if handler.stream_unary:
            behaviour = self._answer(handler.stream_unary, caller, role)
            return grpc.stream_unary_rpc_method_handler(behaviour, read, write)
        if handler.unary_stream:
            behaviour = self._stream(handler.unary_stream, caller, role)
            return grpc.unary_stream_rpc_method_handler(behaviour, read, write)
        assert handler.stream_stream, "there are four kinds of RPCs"
        behaviour = self._stream(handler.stream_stream, caller, role)
        return grpc.stream_stream_rpc_method_handler(behaviour, read, write)

    def _answer(self, behaviour: Behaviour, caller: Caller, role: Role) -> Behaviour:
        async def checked(request: Any, call: AnyCall) -> Any:
            await self._check(call, caller, role)
            return await behaviour(request, call)

        return checked

    def _stream(self, behaviour: Behaviour, caller: Caller, role: Role) -> Behaviour:
        """gRPC asks for one of two kinds, and takes no other: messages that are yielded, or written."""

        async def yielding(request: Any, call: AnyCall) -> AsyncIterator[Any]:
            await self._check(call, caller, role)
            async with contextlib.aclosing(behaviour(request, call)) as messages:
                async for message in messages:
                    yield message

        return yielding if inspect.isasyncgenfunction(behaviour) else self._answer(behaviour, caller, role)

    async def _check(self, call: AnyCall, caller: Caller, role: Role) -> None:
        """The names in the caller's certificate, which are known only now."""
        known = call.auth_context()
        names = _texts(known, NAMES)
        if self._access.tls is not None and not self._access.tls.allows(names):
            await self._refuse(call, Forbidden(REFUSAL))
        try:
            serve_for(self._access.with_certificate(caller, names or _texts(known, SUBJECT), role))
        except Denied as denied:
            await self._refuse(call, denied)


def guards(access: Access, refuse: Refuse) -> Sequence[Guard]:
    """What a server needs."""
    is_needed = access.needs_key or access.tells_certificates_apart
    return [Guard(access, refuse)] if is_needed else []


def _texts(known: Mapping[str, Iterable[bytes]], key: str) -> list[str]:
    return [bytes(value).decode("utf-8", "replace") for value in known.get(key, ())]
