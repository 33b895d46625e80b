"""Every RPC that a server of ours has needs a role, and the page for operators says which."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from smg_grpc_proto.generated import vllm_engine_pb2

import enginewire.v1
from enginewire.access.roles import ROLES, Role, role_of
from enginewire.server.services import orca_messages
from tests.repository import ROOT

FILES = [
    *(
        importlib.import_module(f"enginewire.v1.{module.name}").DESCRIPTOR
        for module in pkgutil.iter_modules(enginewire.v1.__path__)
        if module.name.endswith("_pb2")
    ),
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
    vllm_engine_pb2.DESCRIPTOR,
]
SERVICES = [
    *(service for file in FILES for service in file.services_by_name.values()),
    orca_messages.SERVICE,
]


def test_the_table_has_each_rpc_of_each_service_and_no_other() -> None:
    assert {name: set(methods) for name, methods in ROLES.items()} == {
        service.full_name: {method.name for method in service.methods} for service in SERVICES
    }


@pytest.mark.parametrize("method", ["/enginewire.v1.EngineService/New", "/somebody.Service/Generate", "//"])
def test_an_rpc_that_is_not_there_needs_the_most(method: str) -> None:
    assert role_of(method) is Role.ADMIN


def test_the_page_for_operators_says_the_same() -> None:
    page = (ROOT / "docs/security.md").read_text().partition("<!-- roles of RPCs -->\n")[2]
    assert page.startswith(table())


def table() -> str:
    """A row per service, a column per role."""
    words = [role.word for role in Role]
    rows = [["service", *words], ["---"] * (len(words) + 1)]
    for service, methods in ROLES.items():
        needed = [", ".join(f"`{name}`" for name, least in methods.items() if least is role) for role in Role]
        rows.append([f"`{service}`", *needed])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
