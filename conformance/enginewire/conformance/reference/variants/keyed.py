"""The reference behind API keys: who brings which, and what each role may call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Context, Reference
from enginewire.conformance.wire.connection import Connection

KEYS: Final = (
    ("read", "reference-key-that-reads"),
    ("infer", "reference-key-that-infers"),
    ("admin", "reference-key-of-an-admin"),
)
ROLES: Final = tuple(role for role, _ in KEYS)
READ: Final = ("DiscoveryService/", "grpc.health.v1.Health/", "/GetKvEventSources", "/ListAdapters")
INFER: Final = ("EngineService/Generate", "EngineService/Abort", "EmbeddingService/")
AnyHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Keyed(Reference):
    """A reference that asks for keys. Mutants are subclasses of it."""

    keys = KEYS
    gates = frozenset({"keys"})

    def connection(self, target: str) -> Connection:
        """With the key that may do everything."""
        return super().connection(target).with_keys(self.keys[-1][1])

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The same, behind the guard."""
        return [Guarded(handler, self.refusal, self.turn_away) for handler in super().handlers()]

    def refusal(self, path: str, brought: Sequence[str]) -> Refusal | None:
        """Why whoever brings this may not call; None when it may."""
        role = self.role_of(brought)
        if role is None:
            return self.refused(grpc.StatusCode.UNAUTHENTICATED)
        if ROLES.index(role) < self.least(path):
            return self.refused(grpc.StatusCode.PERMISSION_DENIED)
        return None

    async def turn_away(self, refusal: Refusal, messages: AsyncIterator[bytes], context: Context) -> None:
        """Say so, whatever the call brings."""
        await context.abort(refusal.code, refusal.message, refusal.trailers())

    def role_of(self, brought: Sequence[str]) -> str | None:
        """The role of exactly one known key."""
        known = {f"Bearer {key}": role for role, key in self.keys}
        return known.get(brought[0]) if len(brought) == 1 else None

    def least(self, path: str) -> int:
        """The lowest role that may call it."""
        if any(part in path for part in READ):
            return 0
        return 1 if any(part in path for part in INFER) else 2

    def refused(self, code: grpc.StatusCode) -> Refusal:
        """How it is said."""
        return Refusal(pb.ERROR_REASON_AUTH, "this key does not allow the call", code=code)


class Guarded(grpc.GenericRpcHandler):
    """Handlers of which a call reaches none that is refused."""

    def __init__(
        self,
        handlers: grpc.GenericRpcHandler,
        refusal: Callable[[str, Sequence[str]], Refusal | None],
        turn_away: Callable[[Refusal, AsyncIterator[bytes], Context], Awaitable[None]],
    ) -> None:
        self._handlers = handlers
        self._turn_away = turn_away
        self._refusal = refusal

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> AnyHandler | None:
        """See grpc."""
        handler = self._handlers.service(handler_call_details)
        pairs = handler_call_details.invocation_metadata or ()
        brought = [str(value) for key, value in pairs if key == "authorization"]
        refusal = self._refusal(str(handler_call_details.method), brought)
        if handler is None or refusal is None:
            return handler

        async def refuse(messages: AsyncIterator[bytes], context: Context) -> None:
            await self._turn_away(refusal, messages, context)

        return grpc.stream_stream_rpc_method_handler(refuse)
