"""The audit log's view of RPCs: a line for each call, whoever it was refused by or served.

RPCs that carry requests are left to whoever knows what became of each of those; refused they are told here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import grpc

from enginewire.access.audit import AuditLog
from enginewire.access.caller import caller
from enginewire.access.wrapped_handler import AnyCall, AnyHandler, wrapped

HEALTH = "/grpc.health.v1.Health/"
"""Probes come every few seconds and say nothing about anybody."""
AUTH_CODES = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


class AuditedCalls(grpc.aio.ServerInterceptor):
    """Stands before the guard."""

    def __init__(self, audit: AuditLog, told_elsewhere: Collection[str] = ()) -> None:
        """`told_elsewhere` are methods with a line for each request."""
        self._audit = audit
        self._told_elsewhere = told_elsewhere

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[AnyHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> AnyHandler | None:
        """See grpc.aio."""
        handler, method = await continuation(handler_call_details), str(handler_call_details.method)
        if handler is None or method.startswith(HEALTH):
            return handler
        return wrapped(handler, lambda call: self._timed(call, method))

    @asynccontextmanager
    async def _timed(self, call: AnyCall, method: str) -> AsyncIterator[None]:
        began = time.monotonic()
        outcome = grpc.StatusCode.CANCELLED
        try:
            yield
            outcome = grpc.StatusCode.OK
        finally:
            # gRPC keeps the number of a code that was set, and the code itself elsewhere.
            code = call.code()
            if outcome is not grpc.StatusCode.OK and code:
                outcome = next((each for each in grpc.StatusCode if code in (each, each.value[0])), outcome)
            if method not in self._told_elsewhere or outcome in AUTH_CODES:
                seconds = time.monotonic() - began
                self._audit.call(
                    who=caller().party.tenant, method=method.strip("/"), outcome=outcome.name, seconds=seconds
                )
