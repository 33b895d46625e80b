"""A real server process, whose prefix cache a router follows over ZeroMQ, as it would follow vLLM's."""

from __future__ import annotations

import asyncio
import json

import msgspec
import zmq
import zmq.asyncio

from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ask


async def test_a_router_that_listens_to_vllm_hears_of_cached_prompts(launch, connect, folder):
    config = {"enable_kv_cache_events": True}
    config |= {"endpoint": f"ipc://{folder}/e", "replay_endpoint": f"ipc://{folder}/r"}
    server = launch("--kv-events-config", json.dumps(config), engine="torch")
    client = connect(server.target())
    async for _ in client.engine.Generate(ask("a", prompt=bytes(range(40)), max_tokens=2)):
        pass
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.connect(config["replay_endpoint"])
        events = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(event["type"] == "BlockStored" for event in events):
                events = await replayed(router)
    [stored] = [event for event in events if event["type"] == "BlockStored"]
    assert events[0] == {"type": "AllBlocksCleared"}
    assert stored["token_ids"] == list(range(32))
    assert (len(stored["block_hashes"]), stored["block_size"]) == (2, 16)
    assert (stored["parent_block_hash"], stored["medium"]) == (None, "CPU")


async def replayed(router):
    """All events since the start."""
    events = []
    await router.send_multipart((b"", (0).to_bytes(8, "big")))
    while True:
        *_, number, batch = await router.recv_multipart()
        if not batch:
            return events
        assert number == len(events).to_bytes(8, "big")
        events += msgspec.msgpack.decode(batch)[1]
