"""Engines to talk to: the mocker in its real server, and one that plays scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.hostile import HostileEngine
from tests.server.conftest import engine_server, role_server

__all__ = ["engine_server", "role_server"]

StartHostile = Callable[..., Awaitable[HostileEngine]]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """One token per byte, then BOS and EOS."""
    return Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))


@pytest.fixture
async def hostile_engine(socket_folder: Path) -> AsyncIterator[StartHostile]:
    """`await hostile_engine(scripts=…)` is a listening engine that plays them."""
    engines: list[HostileEngine] = []

    async def start(**given: object) -> HostileEngine:
        engine = HostileEngine(**given)
        await engine.start(socket_folder / f"hostile{len(engines)}.sock")
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.stop()
