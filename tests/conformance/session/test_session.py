from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.session.session import MOST_SLOWER, Session, Unreachable
from enginewire.conformance.wire import presence
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.violation import Violation


@pytest.fixture
async def slowed_down() -> AsyncIterator[Session]:
    """Of a target that was as fast as any when it was measured, and is not any more."""
    engine = Reference()
    server = await InProcess(engine).start()
    session = Session(connection=Connection(target=server.target))
    await session.open()
    engine.settings = replace(engine.settings, step_seconds=0.1, first_token_seconds=0.5)
    yield session
    await session.close()
    await server.stop()


async def test_bounds_get_wider_once_however_often_a_slow_target_is_looked_at(slowed_down: Session) -> None:
    assert await slowed_down.is_slower()
    assert await slowed_down.is_slower()
    assert 1.0 < slowed_down.bounds.scale <= MOST_SLOWER


async def test_what_a_slow_target_did_not_show_is_observed_anew(slowed_down: Session) -> None:
    tries = []

    async def observe() -> int:
        tries.append("again")
        if len(tries) == 1:
            raise Violation("too late")
        return len(tries)

    for _ in range(2):
        with pytest.raises(Violation):
            await slowed_down.once("it", observe)
    assert await slowed_down.is_slower()
    assert [await slowed_down.once("it", observe) for _ in range(2)] == [2, 2]


async def test_what_a_slow_target_showed_is_observed_anew_as_well(slowed_down: Session) -> None:
    # It may be less than there was to see.
    seen = iter(("half of it", "all of it"))

    async def observe() -> str:
        return next(seen)

    assert [await slowed_down.once("it", observe) for _ in range(2)] == ["half of it"] * 2
    assert await slowed_down.is_slower()
    assert await slowed_down.once("it", observe) == "all of it"


@asynccontextmanager
async def with_an_engine_that_loads(seconds: float, ready_seconds: float) -> AsyncIterator[Session]:
    engine = Reference()
    engine.settings = replace(engine.settings, start_seconds=seconds)
    server = await InProcess(engine).start()
    session = Session(
        connection=Connection(target=server.target), options=RunOptions(ready_seconds=ready_seconds)
    )
    yield session
    await session.close()
    await server.stop()


async def test_an_engine_that_loads_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody is waited for who is away.
    monkeypatch.setattr(presence, "PATIENCE_SECONDS", 0)
    said: list[str] = []
    async with with_an_engine_that_loads(0.5, ready_seconds=60) as session:
        await session.open(said.append)
        assert session.info.config.model
    assert said == ["the engine still loads; it may take 60 s, and --ready-timeout gives more"]


async def test_an_engine_that_loads_for_ever_is_given_up() -> None:
    async with with_an_engine_that_loads(600, ready_seconds=0.1) as session:
        with pytest.raises(Unreachable, match=r"server.sock still loads after 0.1 s"):
            await session.open()
