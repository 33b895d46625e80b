"""Servers that count pings, as gRPC's own do: what they bear, and what a silent prefill survives there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.calling import channel
from tests.backend.asking import Heard, ask, hear
from tests.backend.hostile import HostileEngine, engine_info, terminal
from tests.long import long

# gRPC sends no more pings than one in a second. Who pings so often is cut within five by these servers.
EAGER_MS = 1_000
SILENT_SECONDS = 5.5
BORNE_MS = 2_000
GRPC_DEFAULTS = ()
BEARS_WHAT_IT_SAYS = (
    ("grpc.http2.min_ping_interval_without_data_ms", BORNE_MS),
    ("grpc.http2.max_ping_strikes", 1),
)


@pytest.fixture(autouse=True)
def eager_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "NEAR", (EAGER_MS, 5_000))


def info_of(min_ping_interval_ms: int | None) -> pb.GetEngineInfoResponse:
    info = engine_info()
    if min_ping_interval_ms is not None:
        info.config.limits.min_keepalive_interval_ms = min_ping_interval_ms
    return info


async def heard_of(engine: HostileEngine, vocabulary, *, multiplexed: bool) -> Heard:
    """The answer to a request whose prefill is long, on a watched engine; without a second attempt."""
    request_id = f"slow-{multiplexed}"
    engine.scripts[request_id] = [SILENT_SECONDS, terminal(b"pong")]
    async with Endpoints([EngineClient(engine.target, multiplexed=multiplexed)]) as engines:
        await engines.wait_ready(5)
        return await hear(Backend(engines, vocabulary), ask(), request_id=request_id)


@pytest.mark.parametrize(
    ("options", "said"),
    [(GRPC_DEFAULTS, None), pytest.param(BEARS_WHAT_IT_SAYS, BORNE_MS, marks=long)],
    ids=["a server of gRPC's defaults", "a server that bears exactly what it says"],
)
async def test_a_long_prefill_is_not_cut_by_our_pings(
    hostile_engine, vocabulary, options: Sequence[tuple[str, int]], said: int | None
) -> None:
    engine = await hostile_engine(options=options, info=info_of(said), has_watch=True)
    # On a connection each.
    kinds = (heard_of(engine, vocabulary, multiplexed=kind) for kind in (True, False))
    answers = await asyncio.gather(*kinds)
    assert [(heard.failure, heard.text()) for heard in answers] == [(None, "pong")] * 2


async def test_these_servers_would_cut_whoever_pings_more_often(hostile_engine, vocabulary) -> None:
    engine = await hostile_engine(options=BEARS_WHAT_IT_SAYS, info=info_of(EAGER_MS), has_watch=True)
    heard = await heard_of(engine, vocabulary, multiplexed=True)
    assert "Too many pings" in heard.failure.message


async def test_an_engine_is_watched_over_the_channel_whose_pings_it_bears(hostile_engine) -> None:
    engine = await hostile_engine(info=info_of(BORNE_MS), has_watch=True)
    async with EngineClient(engine.target) as client:
        first = client._dialled.rpc
        loads = client.watch_load(50)
        # The one that the engine says over the first channel, and the one over the next.
        assert [(await anext(loads)).state for _ in range(2)] == [pb.ENGINE_STATE_READY] * 2
        assert client._dialled.rpc is not first
        await loads.aclose()


async def test_an_engine_that_comes_back_and_bears_less_is_pinged_less(hostile_engine) -> None:
    engine = await hostile_engine(info=info_of(EAGER_MS))
    async with EngineClient(engine.target) as client:
        channels = []
        for borne in (EAGER_MS, EAGER_MS, BORNE_MS, None):
            engine.info = info_of(borne)
            await client.wait_ready(5)
            channels.append(client._dialled._channel)
        first, same, slower, patient = channels
        assert first is same
        assert len({id(each) for each in (first, slower, patient)}) == 3
        assert patient is client._dialled._first


async def test_a_start_without_an_answer_says_who_did_not_answer(hostile_engine) -> None:
    engine = await hostile_engine(has_load=False)
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed, match=rf"^{engine.target}: no answer within 0.3 s$"):
            await client.wait_ready(0.3)


async def test_a_start_without_an_answer_says_what_was_heard_before(hostile_engine) -> None:
    engine = await hostile_engine(state=pb.ENGINE_STATE_STARTING)
    async with EngineClient(engine.target) as client:
        waiting = asyncio.create_task(client.wait_ready(3.0))
        await asyncio.sleep(1.0)
        engine.has_load = False
        with pytest.raises(RequestFailed, match=r"no answer within 3 s; before that: .*STATE_STARTING"):
            await waiting
