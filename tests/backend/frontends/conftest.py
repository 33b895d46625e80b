"""Backends for tests of the faces: the mocker in its real server, and a TextBackend on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache

import pytest
import uvicorn.server

from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from tests.server.conftest import StartServer, engine_server
from tests.server.serving import Serving

__all__ = ["engine_server"]

StartBackend = Callable[..., Awaitable[tuple[TextBackend, Serving]]]


class Hasty:
    """asyncio with short sleeps, for uvicorn: it looks ten times a second whether to end, and then pauses."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@pytest.fixture(autouse=True)
def servers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test of the HTTP face ends a server, and would wait 0.2 s for that."""
    monkeypatch.setattr(uvicorn.server, "asyncio", Hasty())


@asynccontextmanager
async def backends(engine_server: StartServer) -> AsyncIterator[StartBackend]:
    """What `start_backend` gives, on engines that are started so."""
    async with AsyncExitStack() as clients:

        async def start(**options: object) -> tuple[TextBackend, Serving]:
            serving = await engine_server(**options)
            client = await clients.enter_async_context(EngineClient(serving.server.target))
            tokenizer = _tokenizer(frozenset((await client.tokenizer_files()).items()))
            return TextBackend(Backend(client, tokenizer.vocabulary), tokenizer), serving

        yield start


@pytest.fixture
async def start_backend(engine_server: StartServer) -> AsyncIterator[StartBackend]:
    """`await start_backend(**options)` is a backend and the engine it uses, left idle afterwards."""
    async with backends(engine_server) as start:
        yield start


@cache
def _tokenizer(files: frozenset[tuple[str, bytes]]) -> BackendTokenizer:
    """Reading one, and trying out how its ids become text, takes longer than most tests."""
    return BackendTokenizer.from_files(dict(files))


@pytest.fixture
async def text_backend(start_backend: StartBackend) -> TextBackend:
    """A backend on a mocker that answers at once."""
    return (await start_backend())[0]
