"""grpc.health.v1 of a backend: "" is liveness, BackendService is readiness.

A backend is alive while its process answers, and ready while one of its engines takes requests and it is
not draining itself. Knows nothing about requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.frontends.calls import streaming, unary
from enginewire.listening.health import NOT_SERVING, SERVICE_UNKNOWN, SERVING, HealthServicer, Status

HEALTH: Final = "grpc.health.v1.Health"
LOOK_SECONDS: Final = 0.25


class BackendHealth(HealthServicer):
    """The health of a service of this backend."""

    def __init__(self, engines: Endpoints, service: str) -> None:
        self._engines = engines
        self._service = service
        self._is_draining = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register it."""
        asked = health_pb2.HealthCheckRequest
        served = {"Check": unary(self.Check, asked), "Watch": streaming(self.Watch, asked)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, served),))

    def drain(self) -> None:
        """The server has begun to end: not ready from now on, and watchers are let go."""
        self._is_draining = True

    def status_of(self, service: str) -> Status:
        """See `HealthServicer`."""
        if service == "":
            return SERVING
        if service != self._service:
            return SERVICE_UNKNOWN
        is_ready = not self._is_draining and any(engine.is_usable for engine in self._engines.all)
        return SERVING if is_ready else NOT_SERVING

    async def looks(self) -> AsyncIterator[bool]:
        """See `HealthServicer`."""
        while True:
            yield self._is_draining
            await self._engines.wait_for_change(LOOK_SECONDS)
