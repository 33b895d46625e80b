"""The two messages of grpc.health.v1, built at run time.

The kit must not need grpcio-health-checking, and must not clash with it where it is installed: hence
a descriptor pool of its own.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

CHECK: Final = "Health.Check"
WATCH: Final = "Health.Watch"
LIVENESS: Final = ""
READINESS: Final = "enginewire.v1.EngineService"
NO_SERVICE: Final = "enginewire.v1.NoSuchService"
"""A name that no contract has."""

UNKNOWN: Final = 0
SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

NAMES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def _types() -> tuple[type[Message], type[Message]]:
    file = FileDescriptorProto(name="health.proto", package="grpc.health.v1", syntax="proto3")
    status = file.message_type.add(name="HealthCheckResponse")
    served = status.enum_type.add(name="ServingStatus")
    for number, name in NAMES.items():
        served.value.add(name=name, number=number)
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    status.field.add(
        name="status",
        number=1,
        label=optional,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
    )
    asked = file.message_type.add(name="HealthCheckRequest")
    asked.field.add(name="service", number=1, label=optional, type=FieldDescriptorProto.TYPE_STRING)
    pool = DescriptorPool()
    pool.Add(file)
    messages = pool.FindFileByName("health.proto").message_types_by_name
    return GetMessageClass(messages["HealthCheckRequest"]), GetMessageClass(messages["HealthCheckResponse"])


Request, Response = _types()


def request(service: str) -> Message:
    """A HealthCheckRequest."""
    return Request(service=service)


def response(status: int) -> Message:
    """A HealthCheckResponse."""
    return Response(status=status)


def service_of(message: Message) -> str:
    """The service a HealthCheckRequest names."""
    return str(getattr(message, "service"))  # noqa: B009  # the class has no static type


def status_of(message: Message) -> int:
    """The status a HealthCheckResponse carries."""
    return int(getattr(message, "status"))  # noqa: B009  # the class has no static type
