"""Events of a prefix cache over real sockets of ZeroMQ, from a cache that a test plays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from enginewire import v1 as pb
from enginewire.server.config.kv_events import KvEventsConfig
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.failures import SlowConsumer, Unsupported
from enginewire.server.services.kv_publisher import END_OF_REPLAY, publishing
from tests.patience import PATIENCE_SECONDS

BEAT = pb.KvEvent(sequence=1, cleared=pb.KvCacheCleared())
CLEARED = pb.KvEvent(sequence=1, cleared=pb.KvCacheCleared())
STORED = pb.KvEvent(
    sequence=2,
    stored=pb.KvBlocksStored(
        parent_block_hash=0,
        block_hashes=[2**64 - 1, 7],
        token_ids=[1, 2, 3, 4],
        block_size=2,
        lora_name="one",
        medium="gpu",
    ),
)
FIRST = pb.KvEvent(sequence=3, stored=pb.KvBlocksStored(block_hashes=[5], token_ids=[1, 2], block_size=2))
REMOVED = pb.KvEvent(sequence=4, removed=pb.KvBlocksRemoved(block_hashes=[7], medium="cpu"))


class PlayedCache:
    """Tells what the test puts into `told`, by rank: events, or what the subscription ends with."""

    def __init__(self, ranks: int = 1) -> None:
        self.told = [asyncio.Queue[Sequence[pb.KvEvent] | Exception | None]() for _ in range(ranks)]
        self.begun: list[int | None] = []

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        return [pb.KvEventSource(dp_rank=rank) for rank in range(len(self.told))]

    async def subscribe_kv_events(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        self.begun.append(after_sequence)
        while (told := await self.told[dp_rank].get()) is not None:
            if isinstance(told, Exception):
                raise told
            yield pb.SubscribeKvEventsResponse(events=told)

    async def reset_prefix_cache(self) -> int:
        return 0


class Router:
    """Hears as vLLM's own example does, and counts from the first batch that it waits for."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._first = 0

    async def listen(self, told: asyncio.Queue[Sequence[pb.KvEvent] | Exception | None]) -> None:
        """An event comes until one is heard: whoever publishes learns of a subscriber a little later."""
        while not await self._socket.poll(50):
            told.put_nowait([BEAT])
            self._first += 1
        while (await self.hears())[1] != -1:
            pass

    async def hears(self) -> tuple[bytes, int, list[object]]:
        topic, number, batch = await asyncio.wait_for(self._socket.recv_multipart(), PATIENCE_SECONDS)
        return topic, int.from_bytes(number, "big") - self._first, msgspec.msgpack.decode(batch)


@asynccontextmanager
async def subscribed(
    cache: PlayedCache, endpoint: str, topic: str = "", rank: int = 0
) -> AsyncIterator[Router]:
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        socket.subscribe(topic.encode())
        router = Router(socket)
        await router.listen(cache.told[rank])
        yield router


def config_in(folder: Path, **changes: object) -> KvEventsConfig:
    return KvEventsConfig(enable_kv_cache_events=True, endpoint=f"ipc://{folder}/events", **changes)


async def test_batches_are_numbered_and_spelled_as_vllm_does(socket_folder: Path) -> None:
    cache, config = PlayedCache(), config_in(socket_folder, topic="kv")
    async with publishing(cache, config), subscribed(cache, config.endpoint, "kv") as router:
        cache.told[0].put_nowait([CLEARED, STORED])
        cache.told[0].put_nowait([])
        cache.told[0].put_nowait([FIRST, REMOVED])
        topic, number, (at, events, rank) = await router.hears()
        assert (topic, number, rank) == (b"kv", 0, 0)
        assert isinstance(at, float)
        assert events == [
            {"type": "AllBlocksCleared"},
            {
                "type": "BlockStored",
                "block_hashes": [2**64 - 1, 7],
                "parent_block_hash": 0,
                "token_ids": [1, 2, 3, 4],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": "one",
            },
        ]
        _, number, (_, [first, removed], _) = await router.hears()
        assert number == 1
        assert (first["parent_block_hash"], first["medium"], first["lora_name"]) == (None, None, None)
        assert removed == {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"}
        assert os.stat(socket_folder / "events").st_mode & 0o077 == 0


async def test_each_rank_is_published_at_an_endpoint_of_its_own(socket_folder: Path) -> None:
    cache, config = PlayedCache(ranks=2), config_in(socket_folder)
    async with publishing(cache, config), subscribed(cache, f"{config.endpoint}_dp1", rank=1) as router:
        cache.told[0].put_nowait([CLEARED])
        cache.told[1].put_nowait([REMOVED])
        _, _, (_, [event], rank) = await router.hears()
        assert (event["type"], rank) == ("BlockRemoved", 1)


async def test_a_publisher_that_was_too_slow_goes_on_behind_what_it_has_seen(socket_folder: Path) -> None:
    cache, config = PlayedCache(), config_in(socket_folder)
    async with publishing(cache, config), subscribed(cache, config.endpoint) as router:
        cache.told[0].put_nowait([CLEARED, STORED])
        cache.told[0].put_nowait(SlowConsumer("gone"))
        cache.told[0].put_nowait([FIRST])
        assert [(await router.hears())[1] for _ in range(2)] == [0, 1]
        assert cache.begun == [None, 2]


@asynccontextmanager
async def asking(endpoint: str | None) -> AsyncIterator[zmq.asyncio.Socket]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        yield socket


async def replayed(socket: zmq.asyncio.Socket, first: int) -> list[tuple[bytes, int, object]]:
    """Topic, number and type of each event that is kept from `first` on."""
    await socket.send_multipart((b"", first.to_bytes(8, "big")))
    found = []
    while True:
        _, topic, number, batch = await asyncio.wait_for(socket.recv_multipart(), PATIENCE_SECONDS)
        if number == END_OF_REPLAY:
            return found
        _, [event], _ = msgspec.msgpack.decode(batch)
        found.append((topic, int.from_bytes(number, "big"), event["type"]))


async def test_what_is_kept_is_sent_again_to_whoever_asks(socket_folder: Path) -> None:
    cache, replay = PlayedCache(), f"ipc://{socket_folder}/replay"
    config = config_in(socket_folder, replay_endpoint=replay, buffer_steps=3, topic="kv")
    async with publishing(cache, config), asking(replay) as socket:
        for event in (CLEARED, STORED, FIRST, REMOVED):
            cache.told[0].put_nowait([event])
        kept = [(b"kv", 1, "BlockStored"), (b"kv", 2, "BlockStored"), (b"kv", 3, "BlockRemoved")]
        while (found := await replayed(socket, 0)) != kept:
            assert found[:1] < kept  # not all of it has been published
        assert await replayed(socket, 3) == kept[2:]
        assert await replayed(socket, 4) == []


async def test_each_rank_repeats_its_own(socket_folder: Path) -> None:
    cache, replay = PlayedCache(ranks=2), f"ipc://{socket_folder}/replay"
    config = config_in(socket_folder, replay_endpoint=replay)
    async with publishing(cache, config), asking(f"{replay}_dp1") as socket:
        cache.told[0].put_nowait([CLEARED])
        cache.told[1].put_nowait([REMOVED])
        while not (found := await replayed(socket, 0)):
            pass  # nothing has been published
        assert found == [(b"", 0, "BlockRemoved")]


async def test_a_question_that_nobody_understands_changes_nothing(socket_folder: Path) -> None:
    cache = PlayedCache()
    config = config_in(socket_folder, replay_endpoint=f"ipc://{socket_folder}/replay")
    async with publishing(cache, config) as [task], asking(config.replay_endpoint) as socket:
        await socket.send_multipart((b"what",))
        assert await replayed(socket, 0) == []
        assert not task.done()


async def test_an_endpoint_that_is_taken_is_named(socket_folder: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://*")
        config = KvEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{port}")
        with pytest.raises(
            zmq.ZMQError, match=rf"--kv-events-config: tcp://\*:{port}: Address already in use"
        ):
            async with publishing(PlayedCache(), config):
                pass


async def test_an_engine_without_such_events_is_refused(socket_folder: Path) -> None:
    with pytest.raises(Unsupported, match="no events of a prefix cache"):
        async with publishing(MockerEngine(MockerOptions()), config_in(socket_folder)):
            pass
