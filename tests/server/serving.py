"""An engine server in this process, and what tests ask of it.

`Serving` is a started server with a channel to it; `ask` makes requests; `detail_of` reads a failure the
way the contract promises that it can be read. Knows nothing about processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from enginewire import v1 as pb
from enginewire.server import status
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.server import EngineServer
from tests.patience import PATIENCE_SECONDS

IDLE = (0, 0, 0)
ENGINE_SERVICE = "enginewire.v1.EngineService"


class Advertising(MockerEngine):
    """A mocker that says of itself that it has these capabilities, too."""

    def __init__(self, **capabilities: object) -> None:
        super().__init__()
        self._capabilities = pb.Capabilities(**capabilities)

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """The mocker's config, with more."""
        config = await super().start(worker_id)
        config.capabilities.MergeFrom(self._capabilities)
        return config


def ask(
    request_id: str = "r1", prompt: bytes = b"hello", max_tokens: int = 8, **fields: object
) -> pb.GenerateRequest:
    """A request for `max_tokens` tokens that no stop token cuts short."""
    request = pb.PreprocessedRequest(token_ids=list(prompt), **fields)
    request.stop_conditions.max_tokens = max_tokens
    request.stop_conditions.ignore_eos = True
    return pb.GenerateRequest(request_id=request_id, request=request)


def submit(handle: int, request: pb.GenerateRequest, **fields: object) -> pb.GenerateMultiplexedRequest:
    """One request as a frame of a multiplexed stream."""
    return pb.GenerateMultiplexedRequest(submits=[pb.Submit(handle=handle, generate=request, **fields)])


def in_one_frame(frames: Iterable[pb.GenerateMultiplexedRequest]) -> pb.GenerateMultiplexedRequest:
    """All that these frames have, so that no request ends before the last one has come."""
    whole = pb.GenerateMultiplexedRequest()
    for frame in frames:
        whole.MergeFrom(frame)
    return whole


def abort_frame(*handles: int) -> pb.GenerateMultiplexedRequest:
    """A frame that ends requests."""
    return pb.GenerateMultiplexedRequest(abort=pb.AbortHandles(handles=handles))


def seconds(value: float) -> Duration:
    """A protobuf duration."""
    duration = Duration()
    duration.FromNanoseconds(round(value * 1e9))
    return duration


def detail_of(error: grpc.aio.AioRpcError) -> pb.ErrorDetail:
    """The ErrorDetail of a non-OK status, after checking everything the contract promises about it."""
    found = rpc_status.from_call(error)
    assert found is not None, f"no details: {error.code()} {error.details()}"
    assert found.message == error.details()
    assert len(found.SerializeToString()) <= 4096
    assert found.code == error.code().value[0]
    return checked_detail(pb.Status.FromString(found.SerializeToString()))


def checked_detail(found: pb.Status) -> pb.ErrorDetail:
    """The ErrorDetail of a status; its code and google's details must say the same."""
    detail, info = pb.ErrorDetail(), error_details_pb2.ErrorInfo()
    assert found.details[0].Unpack(detail)
    assert found.details[1].Unpack(info)
    assert found.code in {code.value[0] for code in codes_of(detail.reason)}
    assert info.domain == "enginewire"
    assert f"ERROR_REASON_{info.reason}" == pb.ErrorReason.Name(detail.reason)
    assert found.message.isascii()
    assert found.message.isprintable()
    return detail


def codes_of(reason: pb.ErrorReason.ValueType) -> set[grpc.StatusCode]:
    """The codes that the contract has for a reason: AUTH has two."""
    denied = {grpc.StatusCode.PERMISSION_DENIED} if reason == pb.ERROR_REASON_AUTH else set()
    return {status.code_of(reason), *denied}


@dataclass(slots=True)
class Answer:
    """What one request got: tokens, terminals and how it ended."""

    outputs: list[pb.LLMEngineOutput] = field(default_factory=list)
    failure: pb.ErrorDetail | None = None
    is_accepted: bool = False
    events: list[tuple[int, pb.EngineEvent]] = field(default_factory=list)

    def take_event(self, event: pb.EngineEvent) -> None:
        """Keep an event with the number of tokens, over all choices, that came before it."""
        self.events.append((sum(len(output.token_ids) for output in self.outputs), event))

    def tokens(self, index: int = 0) -> list[int]:
        """Tokens of a choice, in order; positions must count them without gaps."""
        found: list[int] = []
        for output in self.outputs:
            if output.index == index:
                assert output.first_output_position == len(found)
                found += output.token_ids
        return found

    def finishes(self) -> dict[int, int]:
        """The finish reason of every choice that has ended; a second end is an error."""
        found: dict[int, int] = {}
        for output in self.outputs:
            assert output.index not in found, "an output after the choice's terminal"
            if output.finish_reason:
                found[output.index] = output.finish_reason
        return found

    def usage(self) -> tuple[int, int]:
        """Prompt and completion tokens, which the last output alone must carry."""
        carriers = [output for output in self.outputs if output.HasField("completion_usage")]
        assert carriers == self.outputs[-1:]
        usage = carriers[0].completion_usage
        return usage.prompt_tokens, usage.completion_tokens


class Serving:
    """A server, a channel to it, its stubs."""

    def __init__(self, server: EngineServer) -> None:
        self.server = server
        self.channel = grpc.aio.insecure_channel(
            server.target, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.engine = pb.EngineServiceStub(self.channel)
        self.embedding = pb.EmbeddingServiceStub(self.channel)
        self.discovery = pb.DiscoveryServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def close(self) -> None:
        """Close the channel, stop the server."""
        await self.channel.close()
        await self.server.stop()

    async def load(self) -> pb.Load:
        """GetLoad."""
        return (await self.discovery.GetLoad(pb.GetLoadRequest())).load

    async def until(self, condition: Callable[[pb.Load], bool], within: float = PATIENCE_SECONDS) -> pb.Load:
        """The first load that meets the condition."""
        async with asyncio.timeout(within):
            while not condition(load := await self.load()):  # noqa: ASYNC110  # there is no event to await
                await asyncio.sleep(0.005)
            return load

    async def until_idle(self, within: float = PATIENCE_SECONDS) -> pb.Load:
        """Return when nothing of any request is left in the engine."""
        return await self.until(lambda load: in_use(load) == IDLE, within)

    async def is_serving(self, service: str = ENGINE_SERVICE) -> bool:
        """What health says."""
        answer = await self.health.Check(health_pb2.HealthCheckRequest(service=service))
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    async def generate(self, request: pb.GenerateRequest, **call: object) -> Answer:
        """One Generate call, to its end."""
        answer = Answer()
        try:
            async for response in self.engine.Generate(request, **call):
                assert response.request_id == request.request_id
                if response.HasField("engine_event"):
                    answer.take_event(response.engine_event)
                else:
                    answer.outputs.append(response.output)
        except grpc.aio.AioRpcError as error:
            answer.failure = detail_of(error)
        return answer

    async def multiplexed(
        self, frames: Iterable[pb.GenerateMultiplexedRequest], **call: object
    ) -> dict[int, Answer]:
        """One GenerateMultiplexed call that half-closes after its frames, to its end."""
        return await collect(self.engine.GenerateMultiplexed(iter(list(frames)), **call))


async def rest_of(call: grpc.aio.StreamStreamCall[Any, Any]) -> AsyncIterator[Any]:
    """What is left of a call whose first messages were read one by one."""
    while (message := await call.read()) is not grpc.aio.EOF:
        yield message


async def collect(frames: AsyncIterable[pb.GenerateMultiplexedResponse]) -> dict[int, Answer]:
    """The answers of a multiplexed stream by handle, after checking the rules of its frames."""
    answers: dict[int, Answer] = {}
    step = 0
    async for frame in frames:
        assert frame.step >= step
        step = frame.step
        for handle, output in rows(frame):
            answers.setdefault(handle, Answer()).outputs.append(output)
        for event in frame.events:
            take_event(answers, event)
        assert all(answer.is_accepted or answer.failure for answer in answers.values())
    return answers


def take_event(answers: dict[int, Answer], event: pb.HandleEvent) -> None:
    """Add one event to the answer of its handle."""
    answer = answers.setdefault(event.handle, Answer())
    assert answer.failure is None, "an event after the handle's status"
    if event.WhichOneof("event") == "output":
        answer.outputs.append(event.output)
    elif event.WhichOneof("event") == "engine_event":
        answer.take_event(event.engine_event)
    elif event.WhichOneof("event") == "accepted":
        assert not answer.is_accepted, "accepted twice"
        answer.is_accepted = True
    elif event.WhichOneof("event") == "status":
        answer.failure = checked_detail(event.status)


def rows(frame: pb.GenerateMultiplexedResponse) -> list[tuple[int, pb.LLMEngineOutput]]:
    """The columns of a frame as one output per run."""
    num_rows = len(frame.handles)
    indexes = frame.indexes or [0] * num_rows
    counts = frame.token_counts or [1] * num_rows
    found, begin = [], 0
    for handle, index, count, position in zip(
        frame.handles, indexes, counts, frame.first_output_positions, strict=True
    ):
        ids = frame.token_ids[begin : begin + count]
        found.append((handle, pb.LLMEngineOutput(token_ids=ids, index=index, first_output_position=position)))
        begin += count
    assert begin == len(frame.token_ids)
    return found


def in_use(load: pb.Load) -> tuple[int, int, int]:
    """What must be 0 when nothing is in flight."""
    return load.running, load.waiting, load.kv_blocks_used


async def until_true(condition: Callable[[], bool], within: float = PATIENCE_SECONDS) -> float:
    """Wait for something without an event of its own; returns the seconds it took."""
    begin = time.monotonic()
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.002)
    return time.monotonic() - begin


async def run_until_ready(server: EngineServer) -> asyncio.Task[int]:
    """The life of a server in this process, once it serves."""
    running = asyncio.create_task(server.run())
    await until_true(lambda: running.done() or server.lifecycle.state == pb.ENGINE_STATE_READY)
    return running


def send_signal(running: asyncio.Task[int], number: signal.Signals) -> None:
    """Signal the server of this process, which has begun to start its engine and not ended yet.

    At any other time nobody handles the signal: it would end the tests.
    """
    assert not running.done()
    os.kill(os.getpid(), number)
