"""Callers of every face who ask again and again, and write down how each of their calls ended.

Each takes the address of its face and a `Diary`, and goes on until the diary is closed. Nobody may listen
there yet, or any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

import grpc
import httpx2
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb

PAUSE_SECONDS: Final = 0.02
NUM_TOKENS: Final = 50
WHOLE, REFUSED, TOLD, CUT = "whole", "refused", "told", "cut"
"""All of it came; nothing of it; a beginning and then an error; a beginning and then nothing."""


@dataclass
class Call:
    """When the first piece of its answer came, in seconds of time.monotonic, and its end: one of these four.

    One that is endless goes on until the server ends it.
    """

    is_endless: bool = False
    began: float | None = None
    end: str = ""

    def goes_on(self) -> None:
        """A piece has come."""
        self.began = self.began or time.monotonic()


@dataclass
class Diary:
    """The calls of all callers of one program."""

    calls: list[Call] = field(default_factory=list)
    is_closed: bool = False

    def new_call(self, *, is_endless: bool = False) -> Call:
        """It is in here until its end and afterwards."""
        self.calls.append(Call(is_endless))
        return self.calls[-1]

    def ends(self) -> Counter[str]:
        """How many calls ended how."""
        return Counter(call.end or "no end" for call in self.calls)


Caller = Callable[[str, Diary], Awaitable[None]]


def channel(target: str) -> grpc.aio.Channel:
    """A connection of its own."""
    return grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])


def asked(request_id: str = "", max_tokens: int = NUM_TOKENS) -> pb.GenerateRequest:
    """So many tokens of any engine."""
    request = pb.PreprocessedRequest(token_ids=[1, 2, 3])
    request.stop_conditions.max_tokens, request.stop_conditions.ignore_eos = max_tokens, True
    return pb.GenerateRequest(request_id=request_id, request=request)


async def note(call: Call, answer: AsyncIterator[Message], is_last: Callable[[Message], bool]) -> None:
    """The end of a gRPC call, whose status is an end as good as any."""
    is_whole = False
    try:
        async for message in answer:
            call.goes_on()
            is_whole = is_last(message)
        call.end = WHOLE if is_whole else TOLD if call.began else REFUSED
    except grpc.aio.AioRpcError:
        call.end = TOLD if call.began else REFUSED


async def ask_engine(target: str, diary: Diary) -> None:
    """Generate of an engine server, four at once."""
    async with channel(target) as to:
        stub, number = pb.EngineServiceStub(to), 0
        while not diary.is_closed:
            number += 1
            calls = [stub.Generate(asked(f"i{number}-{i}")) for i in range(4)]
            await asyncio.gather(*(note(diary.new_call(), call, _ends_engine) for call in calls))
            await asyncio.sleep(PAUSE_SECONDS)


def _ends_engine(message: Message) -> bool:
    return message.output.finish_reason in (pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_STOP)


async def multiplex(target: str, diary: Diary) -> None:
    """A stream that stays open until the engine server ends it, with four requests on it."""
    async with channel(target) as to:
        while not diary.is_closed:
            call, number = diary.new_call(is_endless=True), len(diary.calls)
            submits = [pb.Submit(handle=i + 1, generate=asked(f"m{number}-{i}")) for i in range(4)]
            stream = pb.EngineServiceStub(to).GenerateMultiplexed()
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.write(pb.GenerateMultiplexedRequest(submits=submits))
            await note(call, stream, lambda _: False)
            await asyncio.sleep(PAUSE_SECONDS)


async def ask_backend(target: str, diary: Diary) -> None:
    """BackendService.Generate, two at once."""
    request = pb.BackendServiceGenerateRequest(text="x", request=asked().request)
    request.request.ClearField("token_ids")
    async with channel(target) as to:
        stub = pb.BackendServiceStub(to)
        while not diary.is_closed:
            calls = [stub.Generate(request) for _ in range(2)]
            await asyncio.gather(*(note(diary.new_call(), call, _ends_backend) for call in calls))
            await asyncio.sleep(PAUSE_SECONDS)


def _ends_backend(message: Message) -> bool:
    return message.annotated.data.finish_reason in (pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_STOP)


async def ask_smg(target: str, diary: Diary) -> None:
    """The worker of the SMG gateway."""
    async with channel(target.removeprefix("grpc://")) as to:
        generate = to.unary_stream(
            "/vllm.grpc.engine.VllmEngine/Generate",
            request_serializer=vllm.GenerateRequest.SerializeToString,
            response_deserializer=vllm.GenerateResponse.FromString,
        )
        while not diary.is_closed:
            request = vllm.GenerateRequest(
                request_id=f"s{len(diary.calls)}", stream=True, tokenized={"input_ids": [1]}
            )
            request.sampling_params.max_tokens, request.sampling_params.ignore_eos = NUM_TOKENS, True
            await note(diary.new_call(), generate(request), lambda message: message.HasField("complete"))
            await asyncio.sleep(PAUSE_SECONDS)


async def watch_health(target: str, diary: Diary) -> None:
    """A stream that tells nothing until it changes."""
    async with channel(target) as to:
        while not diary.is_closed:
            watch = health_pb2_grpc.HealthStub(to).Watch(health_pb2.HealthCheckRequest(service=""))
            await note(diary.new_call(is_endless=True), watch, lambda _: False)
            await asyncio.sleep(PAUSE_SECONDS)


async def ask_http(address: str, diary: Diary) -> None:
    """Completions over HTTP, as a stream and whole by turns, on a connection that is kept."""
    # Without time-outs: its end is what is looked at.
    async with httpx2.AsyncClient(base_url=address, timeout=None, trust_env=False) as client:
        while not diary.is_closed:
            call = diary.new_call()
            body = {
                "prompt": "x",
                "max_tokens": NUM_TOKENS,
                "ignore_eos": True,
                "stream": len(diary.calls) % 2 == 0,
            }
            try:
                async with client.stream("POST", "/v1/completions", json=body) as answer:
                    await _note_http(call, answer)
            except httpx2.TransportError:
                call.end = CUT if call.began else REFUSED
            await asyncio.sleep(PAUSE_SECONDS)


async def _note_http(call: Call, answer: httpx2.Response) -> None:
    """The end of an answer that has begun."""
    if answer.status_code != 200:
        await answer.aread()
        call.end = REFUSED
        return
    last = ""
    async with aclosing(answer.aiter_lines()) as lines:
        async for line in lines:
            call.goes_on()
            last = line.removeprefix("data: ") if line not in ("", "data: [DONE]") else last
    call.end = (
        WHOLE if json.loads(last or "{}").get("choices", [{}])[0].get("finish_reason") == "length" else TOLD
    )
