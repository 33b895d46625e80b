"""The guard before every RPC of a server: keys and roles, the names in certificates, who is called for whom.

gRPC itself checks who has signed a certificate and not whose it is, and knows nothing of keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import grpc

from enginewire.access.access import Access, Denied, Forbidden, bearer
from enginewire.access.audit import AuditLog
from enginewire.access.audited_calls import AuditedCalls
from enginewire.access.caller import Caller, serve_for
from enginewire.access.roles import Role, role_of
from enginewire.access.wrapped_handler import AnyCall, AnyHandler, wrapped
from enginewire.tls.listener import REFUSAL

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
            await self._deny(call, denied)

        # Of the four kinds the one that does not wait for a message, whatever it was called as.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _checked(self, handler: AnyHandler, caller: Caller, role: Role) -> AnyHandler:
        @asynccontextmanager
        async def behind_check(call: AnyCall) -> AsyncIterator[None]:
            await self._check(call, caller, role)
            yield

        return wrapped(handler, behind_check)

    async def _check(self, call: AnyCall, caller: Caller, role: Role) -> None:
        """The names in the caller's certificate, which are known only now."""
        known = call.auth_context()
        names = _texts(known, NAMES)
        if self._access.tls is not None and not self._access.tls.allows(names):
            await self._deny(call, Forbidden(REFUSAL))
        try:
            serve_for(self._access.with_certificate(caller, names or _texts(known, SUBJECT), role))
        except Denied as denied:
            await self._deny(call, denied)

    async def _deny(self, call: AnyCall, denied: Denied) -> NoReturn:
        self._access.count(denied)
        await self._refuse(call, denied)


def guards(
    access: Access, refuse: Refuse, audit: AuditLog | None = None, told_elsewhere: Collection[str] = ()
) -> Sequence[grpc.aio.ServerInterceptor]:
    """What a server needs. `told_elsewhere` as in AuditedCalls."""
    audits = [AuditedCalls(audit, told_elsewhere)] if audit else []
    is_needed = access.needs_key or access.tells_certificates_apart
    return [*audits, *([Guard(access, refuse)] if is_needed else [])]


def _texts(known: Mapping[str, Iterable[bytes]], key: str) -> list[str]:
    return [bytes(value).decode("utf-8", "replace") for value in known.get(key, ())]
