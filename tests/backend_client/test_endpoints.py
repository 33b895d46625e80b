"""Which of several engines is next."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from backend_client.endpoints import Endpoints
from backend_client.engine_client import EngineClient
from backend_client.failure import RequestFailed
from enginewire import v1 as pb
from tests.engine_server.serving import until_true

READY, DRAINING = pb.ENGINE_STATE_READY, pb.ENGINE_STATE_DRAINING


@pytest.fixture
async def engines() -> AsyncIterator[Endpoints]:
    """Three that nobody watches."""
    endpoints = Endpoints([EngineClient(f"unix:/nowhere/{number}") for number in range(3)])
    yield endpoints
    await endpoints.__aexit__(None, None, None)


def report(engines: Endpoints, *loads: dict[str, object]) -> None:
    for endpoint, load in zip(engines.all, loads, strict=True):
        endpoint.heard(pb.Load(**{"state": READY} | load))


async def chosen(engines: Endpoints, **options: object) -> int:
    return engines.all.index(await engines.pick(0.0, **options))


async def test_the_shortest_queue_is_chosen_then_the_emptiest_cache(engines: Endpoints) -> None:
    report(engines, {"waiting": 3}, {"waiting": 1}, {"waiting": 2})
    assert await chosen(engines) == 1
    caches = ({"kv_blocks_used": used, "kv_blocks_total": 10} for used in (5, 4, 3))
    report(engines, *caches)
    assert await chosen(engines) == 2


async def test_what_was_sent_since_the_last_report_counts(engines: Endpoints) -> None:
    report(engines, {"waiting": 2}, {}, {"waiting": 2})
    counts = [0, 0, 0]
    for _ in range(4):
        index = await chosen(engines)
        engines.all[index].in_flight += 1
        counts[index] += 1
    assert counts == [1, 2, 1]


async def test_engines_that_drain_or_died_are_passed_over(engines: Endpoints) -> None:
    report(engines, {"state": DRAINING}, {"waiting": 9}, {})
    engines.all[2].lost()
    assert await chosen(engines) == 1


async def test_an_engine_is_left_alone_until_its_time(engines: Endpoints) -> None:
    report(engines, {}, {"waiting": 9}, {"waiting": 9})
    began = time.monotonic()
    later = dict.fromkeys(engines.all, began + 0.1)
    assert await engines.pick(1.0, later) is engines.all[0]
    assert time.monotonic() >= began + 0.1
    later[engines.all[0]] = time.monotonic() + 60
    assert await engines.pick(1.0, later) is not engines.all[0]


async def test_unfit_engines_are_never_chosen_and_when_all_are_nobody_waits(engines: Endpoints) -> None:
    assert await engines.pick(None, unfit=set(engines.all[:2])) is engines.all[2]
    with pytest.raises(RequestFailed) as caught:
        await engines.pick(None, unfit=set(engines.all))
    assert caught.value.reason == pb.ERROR_REASON_NOT_STARTED


async def test_nobody_ready_is_an_error_after_the_time(engines: Endpoints) -> None:
    for endpoint in engines.all:
        endpoint.lost()
    began = time.monotonic()
    with pytest.raises(RequestFailed):
        await engines.pick(0.1)
    assert 0.1 <= time.monotonic() - began < 2


async def test_watching_tells_of_lives_and_drains(engine_server) -> None:
    serving = await engine_server()
    async with Endpoints([EngineClient(serving.server.target)]) as watched:
        (endpoint,) = watched.all
        await until_true(lambda: endpoint.load.state == READY)
        lifetime_id = endpoint.load.engine_lifetime_id
        assert watched.is_alive(lifetime_id)
        async for _ in serving.engine.Drain(pb.DrainRequest()):
            pass
        await until_true(lambda: endpoint.is_draining)
    assert not endpoint.is_usable
    assert not watched.is_alive("another life")


async def test_the_first_engine_that_is_ready_is_enough(engine_server) -> None:
    serving = await engine_server()
    clients = [EngineClient("unix:/nowhere/e.sock"), EngineClient(serving.server.target)]
    async with Endpoints(clients) as watched:
        assert await watched.wait_ready(20) is clients[1]
    async with Endpoints([EngineClient("unix:/nowhere/e.sock")]) as watched:
        with pytest.raises(RequestFailed):
            await watched.wait_ready(0.2)
