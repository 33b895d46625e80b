"""A bare engine, and this project's server in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from enginewire.server.config.options import ServerOptions
from enginewire.server.load_engine import make_engine
from enginewire.server.server import EngineServer
from tests.server.engines.upstream.raw import Odd, RawServer
from tests.server.serving import Serving

Front = Callable[..., Awaitable[Serving]]


@pytest.fixture
async def raw(socket_folder: Path) -> AsyncIterator[RawServer]:
    """Where the bare engine listens, once it was started."""
    server = RawServer(socket_folder)
    yield server
    await server.end()


@pytest.fixture
async def odd(raw: RawServer) -> Odd:
    """A bare engine that serves."""
    engine = Odd()
    await raw.start(engine)
    return engine


@pytest.fixture
def server_of(raw: RawServer, socket_folder: Path) -> Callable[..., EngineServer]:
    """`server_of(**options)` is a server in front of it that has not begun."""

    def made(**given: object) -> EngineServer:
        given = {"upstream": raw.target, "uds": socket_folder / "front.sock"} | given
        options = ServerOptions(engine="upstream", **given)
        return EngineServer(make_engine(options), options)

    return made


@pytest.fixture
async def front(server_of: Callable[..., EngineServer]) -> AsyncIterator[Front]:
    """`await front(**options)` is a started server in front of the engine."""
    started: list[Serving] = []

    async def start(**given: object) -> Serving:
        server = server_of(**given)
        await server.listen()
        started.append(Serving(server))
        await server.start()
        return started[-1]

    yield start
    for serving in started:
        await serving.close()
