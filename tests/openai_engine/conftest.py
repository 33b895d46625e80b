"""Engines in front of servers that answer what was recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from enginewire.openai_engine.engine import Completions
from tests.openai_engine.recording import RecordedServer, engine_at

Started = Callable[..., Awaitable[tuple[Completions, RecordedServer]]]


@pytest.fixture
async def started() -> AsyncIterator[Started]:
    """`await started(name, **options)` is an engine that has started, and the recorded server behind it."""
    made: list[tuple[Completions, RecordedServer]] = []

    async def start(name: str, **options: object) -> tuple[Completions, RecordedServer]:
        server = RecordedServer(name)
        engine = engine_at(await server.start(), **options)
        made.append((engine, server))
        await engine.start(0)
        return engine, server

    yield start
    for engine, server in made:
        await engine.cleanup()
        await server.end()
