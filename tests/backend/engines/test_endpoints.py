"""Which of several engines is next."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.engines.choice.policy import KV_USE_SLACK, REQUESTS_SLACK, WAITING_SLACK
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed, failed
from enginewire.backend.engines.load_fields import kv_use
from tests.backend.hostile import HostileEngine
from tests.server.serving import until_true

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


CHAIN = [1, 2, 3]


async def test_an_engine_that_had_the_prompt_is_preferred_while_it_is_nearly_as_free(
    engines: Endpoints,
) -> None:
    report(engines, {"waiting": 1}, {"waiting": 1}, {})
    assert await chosen(engines, prefix=CHAIN) == 2
    report(engines, {}, {}, {"waiting": 1})
    assert await chosen(engines) == 0
    assert await chosen(engines, prefix=[1, 2, 9]) == 2
    report(engines, {}, {}, {"waiting": 2})
    assert await chosen(engines, prefix=CHAIN) == 0
    report(engines, {}, {}, {})
    assert await chosen(engines, prefix=CHAIN) == 0, "the last one that got it"


async def test_busy_engines_may_differ_by_a_quarter_and_of_several_with_the_prompt_the_freest_is_chosen(
    engines: Endpoints,
) -> None:
    for number in (0, 1):
        report(engines, *({"waiting": 2 * (each != number)} for each in range(3)))
        assert await chosen(engines, prefix=CHAIN) == number
    for running, expected in (((51, 40), 1), ((51, 52), 0), ((52, 52), 2)):
        used = zip((*running, 40), (9, 8, 5), strict=True)
        report(engines, *({"running": r, "kv_blocks_used": u, "kv_blocks_total": 100} for r, u in used))
        assert await chosen(engines, prefix=CHAIN) == expected, "40 + 40 / 4 + 1 are borne"


async def test_an_engine_with_a_full_cache_is_not_preferred(engines: Endpoints) -> None:
    report(engines, {"waiting": 1}, {}, {"waiting": 1})
    assert await chosen(engines, prefix=CHAIN) == 1
    for used, expected in ((25, 1), (26, 0)):
        report(engines, {}, {"kv_blocks_used": used, "kv_blocks_total": 100}, {})
        assert await chosen(engines, prefix=CHAIN) == expected


async def test_an_engine_that_had_the_prompt_and_cannot_take_it_is_passed_over(engines: Endpoints) -> None:
    report(engines, {"waiting": 1}, {}, {"waiting": 1})
    assert await chosen(engines, prefix=CHAIN) == 1
    report(engines, {}, {"state": DRAINING}, {})
    assert await chosen(engines, prefix=CHAIN) == 0
    report(engines, {}, {}, {})
    assert await chosen(engines, prefix=CHAIN, unfit={engines.all[0]}) == 1
    later = {engines.all[1]: time.monotonic() + 60}
    assert await chosen(engines, prefix=CHAIN, not_before=later) == 0


LOADS = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(0, 20), st.integers(0, 12), st.sampled_from([READY, READY, DRAINING])
    ),
    min_size=3,
    max_size=3,
)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=4)


@given(st.lists(st.tuples(LOADS, PROMPTS), min_size=1, max_size=12))
async def test_no_engine_is_chosen_over_a_freer_one_by_more_than_the_slack(
    steps: list[tuple[list[tuple[int, int, int, int]], list[int]]],
) -> None:
    engines = Endpoints([EngineClient(f"unix:/nowhere/{number}") for number in range(3)])
    for loads, prompt in steps:
        report(
            engines,
            *(
                {"waiting": w, "kv_blocks_used": k, "kv_blocks_total": 20, "running": r, "state": s}
                for w, k, r, s in loads
            ),
        )
        usable = [endpoint for endpoint in engines.all if endpoint.is_usable]
        if not usable:
            continue
        chain = [hash(tuple(prompt[: end + 1])) for end in range(len(prompt))]
        best = await engines.pick(0.0, prefix=chain)
        least = min(usable, key=lambda endpoint: endpoint.burden)
        assert best in usable
        slack = WAITING_SLACK + REQUESTS_SLACK * least.requests
        assert best.waiting - least.waiting <= slack
        assert best.requests - least.requests <= slack
        assert kv_use(best.load) <= kv_use(least.load) + KV_USE_SLACK
        best.in_flight += 1
        assert await engines.pick(0.0) is min(usable, key=lambda endpoint: endpoint.burden)
    await engines.__aexit__(None, None, None)


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
    assert time.monotonic() - began >= 0.1


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


async def test_an_engine_that_cannot_be_watched_is_asked_and_none_that_is_gone_is_chosen(
    socket_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engines, sockets = [HostileEngine(), HostileEngine()], [socket_folder / "0", socket_folder / "1"]
    for engine, socket in zip(engines, sockets, strict=True):
        await engine.start(socket)
    async with Endpoints([EngineClient(engine.target) for engine in engines]) as asked:
        gone, there = asked.all
        await until_true(lambda: gone.load.engine_lifetime_id == "life")
        await engines[0].stop()
        await until_true(lambda: not gone.is_usable)
        there.in_flight = 9
        assert await asked.pick(0.0) is there
        again = HostileEngine()
        await again.start(sockets[0])
        await until_true(lambda: gone.is_usable)
        assert await asked.pick(0.0) is gone
    said = [message for message in caplog.messages if gone.target in message]
    assert re.search("does not answer: .+", said[0])
    assert "answers again" in said[-1]
    await again.stop()
    await engines[1].stop()


async def test_an_engine_that_was_not_heard_to_leave_is_asked(engine_server) -> None:
    serving = await engine_server()
    endpoint = Endpoint(EngineClient(serving.server.target))
    life = (await serving.load()).engine_lifetime_id
    assert not await endpoint.has_handed_back(life)
    assert await endpoint.has_handed_back("another life")
    async for _ in serving.engine.Drain(pb.DrainRequest()):
        pass
    assert await endpoint.has_handed_back(life)
    await endpoint.client.close()


async def test_an_engine_that_cannot_say_has_not_handed_back(engines: Endpoints, monkeypatch) -> None:
    async def load(timeout: float | None = None) -> pb.Load:
        raise failed(grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_REASON_UNSUPPORTED, "no GetLoad")

    monkeypatch.setattr(engines.all[0].client, "load", load)
    assert not await engines.all[0].has_handed_back("life")


async def test_an_engine_that_is_busy_has_not_handed_back(engines: Endpoints, monkeypatch) -> None:
    async def load(timeout: float | None = None) -> pb.Load:
        async with asyncio.timeout(timeout):
            await asyncio.sleep(1.2)
        return pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id="life")

    monkeypatch.setattr(engines.all[0].client, "load", load)
    assert not await engines.all[0].has_handed_back("life")


async def test_an_engine_that_is_away_has_handed_back(engines: Endpoints) -> None:
    assert await engines.all[0].has_handed_back("life")


async def test_the_first_engine_that_is_ready_is_enough(engine_server) -> None:
    serving = await engine_server()
    clients = [EngineClient("unix:/nowhere/e.sock"), EngineClient(serving.server.target)]
    async with Endpoints(clients) as watched:
        assert await watched.wait_ready(20) is clients[1]
    async with Endpoints([EngineClient("unix:/nowhere/e.sock")]) as watched:
        with pytest.raises(RequestFailed):
            await watched.wait_ready(0.2)
