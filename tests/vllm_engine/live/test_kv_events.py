"""What our server publishes of a prefix cache, read with vLLM's own classes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import zmq

from enginewire import v1 as pb
from tests.vllm_engine.live.conftest import TORCH, VLLM, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, connection, request


# vLLM is imported here: torch warns of itself then.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("engine", [TORCH, VLLM], ids=["torch", "vllm"])
def test_vllm_understands_the_events(start: Start, tmp_path: Path, engine: tuple[str, ...]) -> None:
    from vllm.distributed.kv_events import AllBlocksCleared, BlockStored

    config = {"enable_kv_cache_events": True}
    config |= {"endpoint": f"ipc://{tmp_path}/e", "replay_endpoint": f"ipc://{tmp_path}/r"}
    server = start(*engine, "--kv-events-config", json.dumps(config))
    server.wait_ready()
    asked = pb.GenerateRequest(request_id="a", request=request("Question " * 40))
    tokens = list(asked.request.token_ids)
    with connection(server) as channel:
        for answer in pb.EngineServiceStub(channel).Generate(asked, timeout=PATIENCE_SECONDS):
            tokens += answer.output.token_ids
    events = list[object]()
    while not any(isinstance(event, BlockStored) for event in events):
        events = replayed(str(config["replay_endpoint"]))
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert isinstance(events[0], AllBlocksCleared)
    told = [token for event in stored for token in event.token_ids]
    # Of the prompt, and of the answer when the next event is out already.
    assert told == tokens[: len(told)]
    assert len(told) == sum(len(event.block_hashes) * event.block_size for event in stored)


def replayed(endpoint: str) -> list[object]:
    """All events since the start."""
    from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

    events = list[object]()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_SECONDS * 1000))
        socket.connect(endpoint)
        socket.send_multipart((b"", (0).to_bytes(8, "big")))
        while True:
            *_, number, batch = socket.recv_multipart()
            if number == ZmqEventPublisher.END_SEQ:
                return events
            events += msgspec.msgpack.decode(batch, type=KVEventBatch).events
