"""KvService and the prefix cache's part of AdminService, over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.torch_engine.frontend.kv_events import KvEventLog
from enginewire.torch_engine.scheduling.prefix_cache import BlocksStored
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, ask, detail_of
from tests.torch_engine.scheduling.replica import Replica

SIZE = 512


class CachingEngine(MockerEngine):
    """A mocker with a prefix cache that does what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.log = KvEventLog(SIZE, "cpu", history_tokens=50_000)
        self.num_stored = 0

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        config.capabilities.prefix_cache = config.capabilities.kv_events = True
        return config

    async def kv_event_sources(self) -> list[pb.KvEventSource]:
        return [pb.KvEventSource(dp_rank=0)]

    def subscribe_kv_events(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        return self.log.subscribe(after_sequence)

    async def reset_prefix_cache(self) -> int:
        return self.num_stored

    async def cleanup(self) -> None:
        self.log.close()
        await super().cleanup()

    def store(self, count: int) -> None:
        for _ in range(count):
            self.num_stored += 1
            self.log.append([BlocksStored(None, (self.num_stored,), tuple(range(SIZE)))])


@pytest.fixture
async def serving(engine_server) -> Serving:
    return await engine_server(CachingEngine())


def kv(serving: Serving) -> pb.KvServiceStub:
    return pb.KvServiceStub(serving.channel)


def admin(serving: Serving) -> pb.AdminServiceStub:
    return pb.AdminServiceStub(serving.channel)


def engine_of(serving: Serving) -> CachingEngine:
    engine = serving.server.lifecycle.engine
    assert isinstance(engine, CachingEngine)
    return engine


async def read_to_the_end(call: grpc.aio.UnaryStreamCall[Any, Any]) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_subscriber_holds_the_cache_and_resumes_where_it_was(serving):
    engine_of(serving).store(3)
    replica = Replica(SIZE)
    call = kv(serving).SubscribeKvEvents(pb.SubscribeKvEventsRequest())
    while len(replica.tokens) < 3:
        replica.read((await call.read()).events)
    call.cancel()
    engine_of(serving).store(2)
    call = kv(serving).SubscribeKvEvents(pb.SubscribeKvEventsRequest(after_sequence=replica.sequence))
    while len(replica.tokens) < 5:
        replica.read((await call.read()).events)
    call.cancel()


async def test_the_sources_are_the_same_every_time(serving):
    answers = [await kv(serving).GetKvEventSources(pb.GetKvEventSourcesRequest()) for _ in range(2)]
    assert answers[0] == answers[1]
    assert [source.dp_rank for source in answers[0].sources] == [0]


async def test_a_subscriber_that_does_not_read_is_ended_and_holds_nobody_up(serving):
    engine = engine_of(serving)
    call = kv(serving).SubscribeKvEvents(pb.SubscribeKvEventsRequest())
    await call.read()
    for number in range(60):
        engine.store(20)
        if number % 20 == 0:
            answer = await serving.generate(ask(f"r{number}", max_tokens=4))
            assert len(answer.tokens()) == 4
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read_to_the_end(call)
    assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail_of(ended.value).reason == pb.ERROR_REASON_SLOW_CONSUMER


async def test_subscriptions_end_when_the_engine_is_cleaned_up(serving):
    call = kv(serving).SubscribeKvEvents(pb.SubscribeKvEventsRequest())
    await call.read()
    await serving.engine.Cleanup(pb.CleanupRequest())
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await call.read() is grpc.aio.EOF


async def test_a_reset_says_how_many_blocks_it_freed(serving):
    engine_of(serving).store(7)
    answer = await admin(serving).ResetPrefixCache(pb.ResetPrefixCacheRequest())
    assert answer.blocks_freed == 7


async def read_one(serving: Serving) -> None:
    async for _ in kv(serving).SubscribeKvEvents(pb.SubscribeKvEventsRequest()):
        return


UNSUPPORTED = {
    "sources": lambda serving: kv(serving).GetKvEventSources(pb.GetKvEventSourcesRequest()),
    "events": read_one,
    "reset": lambda serving: admin(serving).ResetPrefixCache(pb.ResetPrefixCacheRequest()),
    "load": lambda serving: admin(serving).LoadAdapter(pb.LoadAdapterRequest(name="a", source="a")),
    "unload": lambda serving: admin(serving).UnloadAdapter(pb.UnloadAdapterRequest(name="a")),
    "list": lambda serving: admin(serving).ListAdapters(pb.ListAdaptersRequest()),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
async def test_an_engine_without_the_capability_says_so(engine_server, name):
    serving = await engine_server()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await UNSUPPORTED[name](serving)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert detail_of(refused.value).reason == pb.ERROR_REASON_UNSUPPORTED


@pytest.mark.parametrize("name", UNSUPPORTED)
async def test_before_the_engine_is_up_every_method_says_so(engine_server, name):
    serving = await engine_server(is_started=False)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await UNSUPPORTED[name](serving)
    assert detail_of(refused.value).reason == pb.ERROR_REASON_NOT_STARTED
