"""grpc.health.v1, as every server of ours answers it. Knows nothing about what makes a server well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health_pb2

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

Status: TypeAlias = "health_pb2.HealthCheckResponse.ServingStatus.ValueType"
Call = grpc.aio.ServicerContext[Any, Any]


class HealthServicer(ABC):
    """Check and Watch. Who inherits it says what the status is, and when to look again."""

    @abstractmethod
    def status_of(self, service: str) -> Status:
        """The status now, SERVICE_UNKNOWN for a service that is not ours."""

    @abstractmethod
    def looks(self) -> AsyncIterator[bool]:
        """An item whenever a status may have changed, the first at once; True is the last.

        Watchers end then: an open one would hold up the end of the server for its whole grace.
        """

    async def Check(
        self, request: health_pb2.HealthCheckRequest, call: Call
    ) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND for a service that is not ours."""
        status = self.status_of(request.service)
        if status == SERVICE_UNKNOWN:
            await call.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, request: object, call: Call) -> None:
        """Newer releases of grpcio-health-checking register it; whoever asks knows the service's name."""
        await call.abort(grpc.StatusCode.UNIMPLEMENTED, "ask for one service")

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, call: Call
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after every change, until the server ends."""
        last: int | None = None
        async for is_last in self.looks():
            status = self.status_of(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if is_last:
                return
