"""Listens to what vLLM publishes of its prefix cache, on a socket in a folder of the server's own."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import zmq
import zmq.asyncio
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

NUMBER_BYTES: Final = 8

log = logging.getLogger(__name__)


class CacheListener:
    """One per life. `arguments` are for vLLM's command line."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="enginewire-kv-")
        # For ranks behind the first vLLM makes another name of it, if it has this word.
        self._endpoint = f"ipc://{self._folder}/inproc"
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self._endpoint}
        self.arguments = ("--kv-events-config", json.dumps(config))

    def hears(self, config: VllmConfig) -> bool:
        """Events come here: they are on, and the operator has not sent them elsewhere."""
        events = config.kv_events_config
        return (
            config.cache_config.enable_prefix_caching
            and events is not None
            and events.endpoint == self._endpoint
        )

    async def run(
        self,
        rank: int,
        take: Callable[[Sequence[BlockStored | BlockRemoved | AllBlocksCleared]], None],
        lose: Callable[[], object],
    ) -> None:
        """Hand every batch of a rank to `take`, until cancelled; call `lose` when some are missing."""
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.connect(ZmqEventPublisher.offset_endpoint_port(self._endpoint, rank))
            socket.subscribe(b"")
            expected: int | None = None
            while True:
                _, number, batch = await socket.recv_multipart()
                found = int.from_bytes(number, "big")
                if expected is not None and found != expected:
                    log.warning("events of vLLM's prefix cache are lost: it counts as empty")
                    lose()
                expected = found + 1
                take(decoder.decode(batch).events)
        finally:
            socket.close(linger=0)
            context.term()

    def close(self) -> None:
        """Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)
