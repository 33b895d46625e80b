from __future__ import annotations

import asyncio

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed, failed
from enginewire.backend.frontends.dynamo.watch import follow_kv_events, follow_load
from tests.patience import PATIENCE_SECONDS


async def test_an_engine_that_goes_away_is_dead_until_it_is_back(hostile_engine):
    engine, states = await hostile_engine(has_watch=True), asyncio.Queue()
    path = engine.target.removeprefix("unix:")

    async def heard(load: pb.Load) -> None:
        states.put_nowait(load.state)

    async with EngineClient(engine.target) as client:
        following = asyncio.create_task(follow_load(client, heard))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await states.get() == pb.ENGINE_STATE_READY
            await engine.stop()
            assert await states.get() == pb.ENGINE_STATE_DEAD
            await engine.start(path)
            while await states.get() != pb.ENGINE_STATE_READY:
                pass
        following.cancel()


async def test_another_engine_in_its_place_ends_the_watch(hostile_engine):
    engine = await hostile_engine(has_watch=True)

    async def heard(load: pb.Load) -> None:
        raise failed(grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_REASON_INVALID_REQUEST, "another one")

    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed, match="another one"):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await follow_load(client, heard)


async def test_an_engine_that_tells_nothing_of_its_cache_is_not_asked_again(hostile_engine):
    engine = await hostile_engine()
    async with EngineClient(engine.target) as client:
        with pytest.raises(RequestFailed):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await follow_kv_events(client, 0, lambda events: None)
