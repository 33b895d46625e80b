"""A multiplexed call without a network, and what a test says on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.multiplexed import MultiplexedConnection
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import EngineStream
from tests.patience import PATIENCE_SECONDS


class FakeCall:
    """A call whose frames a test writes and reads."""

    def __init__(self) -> None:
        self.written: list[pb.GenerateMultiplexedRequest] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.frames: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.is_cancelled = False

    async def write(self, data: bytes) -> None:
        await self.may_write.wait()
        self.written.append(pb.GenerateMultiplexedRequest.FromString(data))

    def cancel(self) -> None:
        self.is_cancelled = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._read()

    async def _read(self) -> AsyncIterator[bytes]:
        while (frame := await self.frames.get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            yield frame

    async def answer(self, **fields: object) -> None:
        """One frame from the engine, taken."""
        self.frames.put_nowait(pb.GenerateMultiplexedResponse(**fields).SerializeToString())
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def submit(
    connection: MultiplexedConnection, request_id: str = "r1", *, n: int = 1, size: int = 0, **fields: object
) -> EngineStream:
    request = pb.PreprocessedRequest(token_ids=[1] * size, **fields)
    request.sampling_options.n = n
    return connection.submit(pb.GenerateRequest(request_id=request_id, request=request), None, {})


def event(handle: int, **fields: object) -> pb.HandleEvent:
    return pb.HandleEvent(handle=handle, **fields)


def last(index: int = 0, **fields: object) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(index=index, finish_reason=pb.FINISH_REASON_LENGTH, **fields)


async def failure_of(stream: EngineStream) -> RequestFailed:
    async def read_all() -> None:
        while await stream.read():
            pass

    with pytest.raises(RequestFailed) as caught:
        await asyncio.wait_for(read_all(), PATIENCE_SECONDS)
    return caught.value
