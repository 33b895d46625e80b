"""Servers for tests: short-lived, each on a socket of its own, each left idle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import StepEngine
from enginewire.server.load_engine import make_engine
from enginewire.server.server import EngineServer
from tests.server.serving import Serving

StartServer = Callable[..., Awaitable[Serving]]


@asynccontextmanager
async def engine_servers(folder: Path) -> AsyncIterator[StartServer]:
    """What `engine_server` gives, with sockets in that folder."""
    all_serving: list[Serving] = []

    async def start(engine: StepEngine | None = None, *, is_started: bool = True, **given: object) -> Serving:
        options = ServerOptions(engine="mocker", uds=folder / f"{len(all_serving)}.sock", **given)
        server = EngineServer(engine or make_engine(options), options)
        await server.listen()
        serving = Serving(server)
        all_serving.append(serving)
        if is_started:
            await server.start()
        return serving

    yield start
    try:
        for serving in all_serving:
            await serving.until_idle()
    finally:
        for serving in all_serving:
            await serving.close()


@pytest.fixture
async def engine_server(socket_folder: Path) -> AsyncIterator[StartServer]:
    """`await engine_server(engine, **options)` is a started server with a mocker unless an engine is given.

    Whatever the test did, nothing may be left in the engine afterwards.
    """
    async with engine_servers(socket_folder) as start:
        yield start


@pytest.fixture
def role_server(engine_server: StartServer, socket_folder: Path) -> StartServer:
    """`await role_server(role, **options)` is a server that shares one transfer folder with the others."""

    async def start(role: str, **options: object) -> Serving:
        return await engine_server(role=role, kv_transfer_folder=socket_folder / "kv", **options)

    return start
