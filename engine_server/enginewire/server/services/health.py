"""grpc.health.v1 of an engine server: "" is liveness, the name of a service is readiness."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from enginewire import v1 as pb
from enginewire.listening.health import NOT_SERVING, SERVICE_UNKNOWN, SERVING, HealthServicer, Status
from enginewire.server.lifecycle import Lifecycle

SERVICE = cast(ServiceDescriptor, health_pb2.DESCRIPTOR.services_by_name["Health"])
# States in which the process is worth keeping.
ALIVE = frozenset({pb.ENGINE_STATE_STARTING, pb.ENGINE_STATE_READY, pb.ENGINE_STATE_DRAINING})


class EngineHealth(HealthServicer):
    """The health of the services named, which follows the lifecycle."""

    def __init__(self, lifecycle: Lifecycle, services: frozenset[str]) -> None:
        self._lifecycle = lifecycle
        self._services = services

    def status_of(self, service: str) -> Status:
        """See `HealthServicer`."""
        if service == "":
            return SERVING if self._lifecycle.state in ALIVE else NOT_SERVING
        if service not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._lifecycle.state == pb.ENGINE_STATE_READY else NOT_SERVING

    async def looks(self) -> AsyncIterator[bool]:
        """See `HealthServicer`."""
        state = self._lifecycle.state
        while True:
            yield state == pb.ENGINE_STATE_STOPPED
            state = await self._lifecycle.wait_state_change(state)
