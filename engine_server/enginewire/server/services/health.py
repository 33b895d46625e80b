"""grpc.health.v1: "" is liveness, the name of a service is readiness.

The statuses follow the lifecycle. Watch streams end by themselves when the server has stopped,
because an open one would hold up the shutdown for its whole grace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from enginewire import v1 as pb
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.handlers import Call

SERVICE = cast(ServiceDescriptor, health_pb2.DESCRIPTOR.services_by_name["Health"])
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
# States in which the process is worth keeping.
ALIVE = frozenset({pb.ENGINE_STATE_STARTING, pb.ENGINE_STATE_READY, pb.ENGINE_STATE_DRAINING})


class HealthServicer:
    """Serves grpc.health.v1 for the services named."""

    def __init__(self, lifecycle: Lifecycle, services: frozenset[str]) -> None:
        self._lifecycle = lifecycle
        self._services = services

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
        """The status now and after every change."""
        last: int | None = None
        state = self._lifecycle.state
        while True:
            status = self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if state == pb.ENGINE_STATE_STOPPED:
                return
            state = await self._lifecycle.wait_state_change(state)

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        if service == "":
            return SERVING if self._lifecycle.state in ALIVE else NOT_SERVING
        if service not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._lifecycle.state == pb.ENGINE_STATE_READY else NOT_SERVING
