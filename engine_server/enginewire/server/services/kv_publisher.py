"""Publishes the events of the prefix cache over ZeroMQ as vLLM does, for routers that listen to vLLM.

A message has three parts: the topic, the number of the batch (8 bytes, big-endian, from 0 on) and the batch
in MessagePack: `[time, events, dp_rank]`. An event is a map whose `type` is `BlockStored`, `BlockRemoved` or
`AllBlocksCleared`. They are those of `SubscribeKvEvents`, in the same order. The server imports this module
only when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from enginewire import v1 as pb
from enginewire.server.config.kv_events import KvEventsConfig, at_rank
from enginewire.server.engines.interface import PrefixCacheEngine, StepEngine
from enginewire.server.failures import SlowConsumer, Unsupported

log = logging.getLogger(__name__)

NUMBER_BYTES: Final = 8
END_OF_REPLAY: Final = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
LONGEST_QUESTION: Final = 1024
"""Bytes: what is asked has 8, and what sockets of ZeroMQ tell each other before it has some more."""
OTHERS: Final = 0o177
"""Rights that nobody but the owner has on a socket."""


@asynccontextmanager
async def publishing(
    engine: StepEngine, config: KvEventsConfig
) -> AsyncIterator[Sequence[asyncio.Task[None]]]:
    """Publish what happens in the cache of each rank, beginning with a snapshot, in the tasks that come.

    Raises Unsupported for an engine without such events, zmq.ZMQError for an endpoint that cannot be used.
    """
    sources = await engine.kv_event_sources()
    if not sources or not isinstance(engine, PrefixCacheEngine):
        raise Unsupported("--kv-events-config: this engine has no events of a prefix cache")
    publishers = list[KvPublisher]()
    tasks = list[asyncio.Task[None]]()
    try:
        for source in sources:
            publishers.append(KvPublisher(config, source.dp_rank))
            tasks.append(asyncio.create_task(publishers[-1].run(engine), name="publisher of KV events"))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for publisher in publishers:
            publisher.close()


class KvPublisher:
    """The sockets of one rank, and the last batches that went out. Raises zmq.ZMQError."""

    def __init__(self, config: KvEventsConfig, dp_rank: int) -> None:
        self._topic, self._dp_rank = config.topic.encode(), dp_rank
        self._batches = deque[tuple[int, bytes]](maxlen=config.buffer_steps)
        self._context = zmq.asyncio.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.setsockopt(zmq.SNDHWM, config.hwm)
        self._replays: zmq.asyncio.Socket | None = None
        try:
            _open(self._events, at_rank(config.endpoint, dp_rank))
            if config.replay_endpoint is not None:
                self._replays = self._context.socket(zmq.ROUTER)
                self._replays.setsockopt(zmq.SNDHWM, config.hwm)
                self._replays.setsockopt(zmq.MAXMSGSIZE, LONGEST_QUESTION)
                _open(self._replays, at_rank(config.replay_endpoint, dp_rank), binds=True)
        except zmq.ZMQError:
            self.close()
            raise

    async def run(self, engine: PrefixCacheEngine) -> None:
        """Publish until the engine is cleaned up."""
        replaying = asyncio.ensure_future(self._replay(self._replays)) if self._replays else None
        try:
            number = 0
            async with contextlib.aclosing(_messages(engine, self._dp_rank)) as messages:
                async for message in messages:
                    batch = msgspec.msgpack.encode((time.time(), list(_words(message)), self._dp_rank))
                    self._batches.append((number, batch))
                    await self._events.send_multipart((self._topic, _bytes_of(number), batch))
                    number += 1
        finally:
            if replaying is not None:
                replaying.cancel()

    def close(self) -> None:
        """Idempotent."""
        self._context.destroy(linger=0)

    async def _replay(self, asked: zmq.asyncio.Socket) -> None:
        """Send whoever asks all that is kept from a number on, and say where it ends."""
        while True:
            parts = await asked.recv_multipart()
            if len(parts) != 3:
                log.warning("a request for KV events that nobody understands: %d parts", len(parts))
                continue
            asker, _, first = parts
            for number, batch in list(self._batches):
                if number >= int.from_bytes(first, "big"):
                    await asked.send_multipart((asker, b"", self._topic, _bytes_of(number), batch))
            await asked.send_multipart((asker, b"", b"", END_OF_REPLAY, b""))


def _open(socket: zmq.asyncio.Socket, endpoint: str, *, binds: bool = False) -> None:
    """Listen at a path or at any address of this machine; connect to everything else, as vLLM does."""
    try:
        if not (binds or "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc:")):
            socket.connect(endpoint)
            log.info("KV events go to %s", endpoint)
            return
        before = os.umask(OTHERS)
        try:
            socket.bind(endpoint)
        finally:
            os.umask(before)
    except zmq.ZMQError as error:
        raise zmq.ZMQError(error.errno, f"--kv-events-config: {endpoint}: {error.strerror}") from error
    log.info("KV events at %s", endpoint)


async def _messages(
    engine: PrefixCacheEngine, dp_rank: int
) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
    """Whoever was too slow goes on behind what it has seen, or begins with a snapshot."""
    seen: int | None = None
    while True:
        try:
            async with contextlib.aclosing(engine.subscribe_kv_events(dp_rank, seen)) as messages:
                async for message in messages:
                    if message.events:
                        seen = message.events[-1].sequence
                        yield message
            return
        except SlowConsumer:
            log.warning("the publisher of KV events was too slow: it begins anew")


def _words(message: pb.SubscribeKvEventsResponse) -> Iterator[dict[str, object]]:
    """The events as vLLM spells them."""
    for event in message.events:
        if event.HasField("stored"):
            stored = event.stored
            parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
            yield {
                "type": "BlockStored",
                "block_hashes": list(stored.block_hashes),
                "parent_block_hash": parent,
                "token_ids": list(stored.token_ids),
                "block_size": stored.block_size,
                "lora_id": None,
                "medium": stored.medium.upper() or None,
                "lora_name": stored.lora_name or None,
            }
        elif event.HasField("removed"):
            removed = event.removed
            hashes, medium = list(removed.block_hashes), removed.medium.upper() or None
            yield {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}
        elif event.HasField("cleared"):
            yield {"type": "AllBlocksCleared"}


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")
