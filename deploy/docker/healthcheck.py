"""Whether a server of ours is well: `python healthcheck.py 127.0.0.1:50059 enginewire.v1.EngineService`.

Asks `grpc.health.v1`, as a probe of Kubernetes does. Exits with 0 for SERVING, else with 1 and a line why.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PATIENCE_SECONDS = 3.0


def complaint(target: str, service: str) -> str:
    """Why the service is not well, "" when it is."""
    with grpc.insecure_channel(target) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE_SECONDS)
        except grpc.RpcError as error:
            return f"{target}: {error.code().name}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return "" if status == "SERVING" else f"{target}: {service or 'the process'} is {status}"


if __name__ == "__main__":
    sys.exit(complaint(sys.argv[1], "".join(sys.argv[2:3])) or 0)
