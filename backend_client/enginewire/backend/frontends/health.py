"""grpc.health.v1 of a backend: "" is liveness, BackendService is readiness.

A backend is alive while its process answers, and ready while one of its engines takes requests and it is
not draining itself. Knows nothing about requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginewire.backend.engines.endpoints import Endpoints

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
# An open Watch would hold up the end of the server for its whole grace.
LOOK_SECONDS: Final = 0.25

Call = grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


class HealthServicer:
    """Serves grpc.health.v1 for a service of this backend."""

    def __init__(self, engines: Endpoints, service: str) -> None:
        self._engines = engines
        self._service = service
        self._is_draining = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register it."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def drain(self) -> None:
        """The server has begun to end: not ready from now on, and watchers are let go."""
        self._is_draining = True

    async def Check(
        self, request: health_pb2.HealthCheckRequest, call: Call
    ) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND for a service that is not ours."""
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            await call.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, call: Call
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after every change, until the server ends."""
        last: int | None = None
        while True:
            # Looked up before the status: a drain that begins while one is sent has a status of its own.
            is_last = self._is_draining
            status = self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if is_last:
                return
            await self._engines.wait_for_change(LOOK_SECONDS)

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        if service == "":
            return SERVING
        if service != self._service:
            return SERVICE_UNKNOWN
        is_ready = not self._is_draining and any(engine.is_usable for engine in self._engines.all)
        return SERVING if is_ready else NOT_SERVING
