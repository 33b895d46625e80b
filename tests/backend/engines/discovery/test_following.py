"""Engines of a backend that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines import endpoints
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.discovery.address import Address
from enginewire.backend.engines.discovery.following import endpoints_of
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.server.engines.mocker.engine import MockerEngine, MockerOptions
from tests.backend.engines.discovery.test_target_file import replace
from tests.backend.hostile import HostileEngine
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

READY = pb.ENGINE_STATE_READY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engines.json"


def names(path: Path, *targets: str) -> None:
    """The list now."""
    replace(path, json.dumps([{"targets": targets}]))


@asynccontextmanager
async def following(path: Path) -> AsyncIterator[Endpoints]:
    async with endpoints_of([f"file:{path}"], lambda address: EngineClient(address.target), 0.1) as engines:
        yield engines


def ready(engines: Endpoints) -> set[str]:
    return {each.target for each in engines.all if each.load.state == READY}


async def test_who_joins_is_chosen_once_it_is_ready_and_who_leaves_is_not(engine_server, path: Path) -> None:
    first, second = await engine_server(), await engine_server()
    one, two = first.server.target, second.server.target
    names(path)
    async with following(path) as engines:
        waiting = asyncio.create_task(engines.wait_ready(30))
        with pytest.raises(RequestFailed):
            await engines.pick(0.0)
        names(path, "unix:/nowhere/e.sock", one)
        assert (await waiting).target == one
        await until_true(lambda: ready(engines) == {one})
        assert {(await engines.pick(0.0)).target for _ in range(5)} == {one}
        names(path, two)
        await until_true(lambda: ready(engines) == {two})
        assert (await engines.pick(0.0)).target == two
        assert [each.number for each in engines.all] == [2]


async def test_an_engine_that_has_left_is_parted_from_when_its_last_request_has_ended(
    engine_server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "IDLE_SECONDS", 0.05)
    first, second = await engine_server(), await engine_server()
    names(path, first.server.target)
    async with following(path) as engines:
        client = await engines.wait_ready(30)
        (left,) = engines.all
        life = (await client.info()).engine_lifetime_id
        left.in_flight += 1
        names(path, second.server.target)
        await until_true(lambda: engines.all != [left])
        await asyncio.sleep(0.1)
        assert (await client.load(1)).state == READY
        assert engines.is_alive(life), "its death would not be the fault of who is in it"
        left.in_flight -= 1
        await until_true(lambda: not engines.is_alive(life))
        with pytest.raises(RequestFailed) as caught:
            await client.submit(pb.GenerateRequest())
        assert caught.value.failure.retryable


async def test_who_is_there_for_good_stays_whatever_a_list_says(engine_server, path: Path) -> None:
    serving = await engine_server()
    target = serving.server.target
    names(path, target)
    dial = lambda address: EngineClient(address.target)  # noqa: E731
    async with endpoints_of([target, f"file:{path}"], dial, 0.1) as engines:
        await until_true(lambda: ready(engines) == {target})
        names(path)
        await asyncio.sleep(0.3)
        assert [each.target for each in engines.all] == [target]


async def test_a_lost_engine_is_a_reason_to_look_again(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HostileEngine()
    await engine.start(socket_folder / "e.sock")
    looks = asyncio.Queue[None]()

    class Told:
        async def look(self) -> tuple[Address, ...]:
            looks.put_nowait(None)
            return (Address(engine.target),)

    monkeypatch.setattr(
        "enginewire.backend.engines.discovery.following.sources_of", lambda targets: ((), (Told(),))
    )
    monkeypatch.setattr("enginewire.backend.engines.discovery.following.SHORTEST_PAUSE_SECONDS", 0.01)
    async with endpoints_of([], lambda address: EngineClient(address.target), 3600) as engines:
        await engines.wait_ready(30)
        await until_true(lambda: ready(engines) != set())
        while not looks.empty():
            await looks.get()
        await engine.stop()
        await asyncio.wait_for(looks.get(), PATIENCE_SECONDS)


async def test_waiting_for_an_engine_ends_when_none_comes(path: Path) -> None:
    names(path)
    async with following(path) as engines:
        with pytest.raises(RequestFailed) as caught:
            await engines.wait_ready(0.2)
        assert caught.value.reason == pb.ERROR_REASON_NOT_STARTED
        with pytest.raises(RequestFailed):
            await engines.info()


async def test_an_engine_of_another_model_is_not_used_and_named(
    engine_server, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await engine_server()
    names(path, first.server.target)
    async with following(path) as engines:
        await engines.wait_ready(30)
        other = await engine_server(MockerEngine(MockerOptions(model="other")))
        names(path, first.server.target, other.server.target)
        await until_true(lambda: "is not used: it serves 'other', not 'mocker'" in caplog.text)
        await until_true(lambda: len(ready(engines)) == 2)
        for endpoint in engines.all:
            endpoint.in_flight = 9 * (endpoint.target == first.server.target)
        assert (await engines.pick(0.0)).target == first.server.target
