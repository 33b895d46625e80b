"""Adapters by the RPCs of AdminService."""

from __future__ import annotations

from enginewire import v1 as pb
from tests.server.serving import Serving


def admin(serving: Serving) -> pb.AdminServiceStub:
    return pb.AdminServiceStub(serving.channel)


async def load(serving: Serving, name: str, source: str) -> pb.Adapter:
    return (await admin(serving).LoadAdapter(pb.LoadAdapterRequest(name=name, source=source))).adapter


async def unload(serving: Serving, name: str) -> None:
    await admin(serving).UnloadAdapter(pb.UnloadAdapterRequest(name=name))
