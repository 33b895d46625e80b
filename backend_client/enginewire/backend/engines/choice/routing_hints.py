"""What a request says about the engine that shall serve it.

Holds the hints that a backend with several engines honours, and refuses those that contradict each other.
Knows nothing about engines and their load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed, failed

ROUTING_KEY: Final = "enginewire-routing-key"
SESSION_SECONDS: Final = 600.0
"""How long a session lasts that nobody uses, unless it says so itself."""


@dataclass(frozen=True, slots=True)
class Named:
    """The one worker that a hint asks for."""

    field: str
    worker_id: int


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that belong together. `key` stands for the id; `timeout` in seconds."""

    key: bytes
    timeout: float
    opens: bool = False
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Hints:
    """Who must serve a request (`worker`), who else may not (`allowed`), and who should if it can."""

    worker: Named | None = None
    allowed: frozenset[int] = frozenset()
    session: Session | None = None
    routing_key: str = ""

    @property
    def field(self) -> str:
        """The hint that leaves nobody when there is nobody; "" when all engines may serve."""
        if self.worker is not None:
            return self.worker.field
        return "routing.allowed_worker_ids" if self.allowed else ""

    def admits(self, worker_id: int | None) -> bool:
        """That worker may serve; None is one that has no id."""
        if self.worker is not None and worker_id != self.worker.worker_id:
            return False
        return not self.allowed or worker_id in self.allowed

    def of_prefill(self, routing: pb.RoutingHints) -> Hints:
        """The same for the engine that computes the prompt. Raises RequestFailed."""
        return replace(self, worker=_named(routing, ("prefill_worker_id",)))


NO_HINTS: Final = Hints()


def read_hints(routing: pb.RoutingHints, metadata: Mapping[str, str] | None = None) -> Hints:
    """The hints of a request. Raises RequestFailed."""
    if not metadata and not routing.ByteSize():
        return NO_HINTS
    return Hints(
        _named(routing, ("backend_instance_id", "decode_worker_id")),
        frozenset(routing.allowed_worker_ids),
        _session(routing.session_control) if routing.HasField("session_control") else None,
        routing.routing_key or (metadata or {}).get(ROUTING_KEY, ""),
    )


def refused(field: str, what: str) -> RequestFailed:
    """A hint that cannot be followed."""
    code, reason = grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID_REQUEST
    return failed(code, reason, f"{field}: {what}", field=field)


def _named(routing: pb.RoutingHints, names: tuple[str, ...]) -> Named | None:
    found = [
        Named(f"routing.{field.name}", value) for field, value in routing.ListFields() if field.name in names
    ]
    for named in found:
        if named.worker_id != found[0].worker_id:
            raise refused(named.field, f"is not {found[0].field}, which names the same worker")
        if routing.allowed_worker_ids and named.worker_id not in routing.allowed_worker_ids:
            raise refused(named.field, "is not one of routing.allowed_worker_ids")
    return found[0] if found else None


def _session(control: pb.SessionControl) -> Session:
    if not control.session_id:
        raise refused("routing.session_control.session_id", "must not be empty")
    return Session(
        blake2b(control.session_id.encode(), digest_size=16).digest(),
        control.timeout_seconds if control.HasField("timeout_seconds") else SESSION_SECONDS,
        opens=control.action == pb.SESSION_ACTION_OPEN,
        closes=control.action == pb.SESSION_ACTION_CLOSE,
    )
