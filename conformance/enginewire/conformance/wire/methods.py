"""The RPCs of the contract and of grpc.health.v1 by name, from their descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from enginewire.conformance.wire.foreign import health_types
from enginewire.v1 import revision

GENERATE: Final = "EngineService.Generate"


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: its path on the wire and the classes of its messages."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]


def method_of(name: str) -> Method | None:
    """The method called `Service.Method`; None for any other name, such as a raw path."""
    return methods().get(name)


@cache
def methods() -> dict[str, Method]:
    """All methods by name."""
    return {method.name: method for method in _contract()} | {method.name: method for method in _health()}


def _contract() -> Iterator[Method]:
    for file in revision.FILES:
        for service in file.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                classes = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
                yield Method(f"{service.name}.{method.name}", path, *classes)


def _health() -> Iterator[Method]:
    for name in (health_types.CHECK, health_types.WATCH):
        path = f"/grpc.health.v1.{name.replace('.', '/')}"
        yield Method(name, path, health_types.Request, health_types.Response)
