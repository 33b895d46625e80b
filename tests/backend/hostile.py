"""An engine that says whatever a script tells it to, over a real socket.

A script is what one request gets, step by step, through Generate and GenerateMultiplexed alike. Bytes
go onto the wire as they are, so nothing has to be a valid answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from enginewire import v1 as pb

# The stream ends with OK.
END = object()
VOCAB_SIZE = 258
PROMPT = list(b"ping")
BARE_FIELDS = {"token_ids", "index", "first_output_position"}

# An output, a failure of the request, bytes, a frame for the handle, an event or seconds to wait for, END.
Step = object
Script = Sequence[Step]


def tokens(ids: bytes | Sequence[int], position: int = 0, **fields: object) -> pb.LLMEngineOutput:
    """Bare token ids unless there are more fields."""
    return pb.LLMEngineOutput(token_ids=ids, first_output_position=position, **fields)


def terminal(
    ids: bytes = b"",
    position: int = 0,
    reason: int = pb.FINISH_REASON_LENGTH,
    usage: tuple[int, int] | None = None,
    **fields: object,
) -> pb.LLMEngineOutput:
    """A terminal output whose usage is right unless it is given as (prompt, completion)."""
    prompt, completion = usage or (len(PROMPT), position + len(ids))
    counted = pb.CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
    return tokens(ids, position, finish_reason=reason, completion_usage=counted, **fields)


GOOD_ANSWER = (tokens(b"pon"), terminal(b"g", 3))


@dataclass
class Received:
    """A request as the engine saw it. Times in seconds."""

    generate: pb.GenerateRequest
    metadata: dict[str, str]
    timeout: float | None


@dataclass
class HostileEngine:
    """Facts to tell, scripts to play, and what came in. Requests without a script get GOOD_ANSWER."""

    info: pb.GetEngineInfoResponse = field(default_factory=lambda: engine_info())
    state: pb.EngineState.ValueType = pb.ENGINE_STATE_READY
    tokenizer: list[pb.GetTokenizerResponse] = field(default_factory=list)
    raw_info: bytes | None = None
    has_load: bool = True
    names_life: bool = True
    headers: Sequence[tuple[str, str]] = ()
    has_watch: bool = False
    options: Sequence[tuple[str, int]] = ()
    scripts: dict[str, Script] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    num_streams: int = 0
    target: str = ""
    _server: grpc.aio.Server | None = None

    async def start(self, path: Path) -> None:
        """Listen on a Unix socket."""
        self.target = f"unix:{path}"
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1), *self.options])
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        engine = {
            "Generate": stream(self._generate),
            "GenerateMultiplexed": grpc.stream_stream_rpc_method_handler(self._multiplexed),
        }
        discovery = {
            "GetEngineInfo": unary(self._info),
            "GetLoad": unary(self._load),
            "GetTokenizer": stream(self._tokenizer),
            **({"WatchLoad": stream(self._watch_load)} if self.has_watch else {}),
        }
        for service, handlers in (("EngineService", engine), ("DiscoveryService", discovery)):
            handler = grpc.method_handlers_generic_handler(f"enginewire.v1.{service}", handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(self.target)
        await self._server.start()

    async def stop(self) -> None:
        """Cut every call."""
        if self._server is not None:
            await self._server.stop(None)

    async def _info(self, data: bytes, call: grpc.aio.ServicerContext) -> bytes:
        return self.info.SerializeToString() if self.raw_info is None else self.raw_info

    async def _load(self, data: bytes, call: grpc.aio.ServicerContext) -> bytes:
        if not self.has_load:
            await asyncio.Event().wait()
        return pb.GetLoadResponse(load=self.load).SerializeToString()

    async def _watch_load(self, data: bytes, call: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield pb.WatchLoadResponse(load=self.load).SerializeToString()
        await asyncio.Event().wait()

    @property
    def load(self) -> pb.Load:
        """What it says of itself: perhaps not which life this is, as one that only plays dead has to."""
        life = self.info.engine_lifetime_id if self.names_life else ""
        return pb.Load(state=self.state, engine_lifetime_id=life)

    async def _tokenizer(self, data: bytes, call: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        for response in self.tokenizer:
            yield response.SerializeToString()

    async def _generate(self, data: bytes, call: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        request = pb.GenerateRequest.FromString(data)
        self.received.append(Received(request, dict(call.invocation_metadata()), call.time_remaining()))
        if self.headers:
            await call.send_initial_metadata(tuple(self.headers))
        is_cut = True
        try:
            for step in self._script(request):
                if step is END:
                    break
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, pb.Status):
                    await abort_with(call, step)
                else:
                    yield step if isinstance(step, bytes) else response(step)
            is_cut = False
        finally:
            if is_cut:
                self.aborted.append(request.request_id)

    async def _multiplexed(
        self, frames: AsyncIterator[bytes], call: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        self.num_streams += 1
        outgoing: asyncio.Queue[Step] = asyncio.Queue()
        reader = asyncio.create_task(self._read(frames, outgoing))
        # A script that raises ends the stream: nobody shall wait for the rest of it.
        reader.add_done_callback(lambda _: outgoing.put_nowait(END))
        try:
            while (step := await outgoing.get()) is not END:
                if isinstance(step, pb.Status):
                    await abort_with(call, step)
                yield step
        finally:
            reader.cancel()

    async def _read(self, frames: AsyncIterator[bytes], outgoing: asyncio.Queue[Step]) -> None:
        ids: dict[int, str] = {}
        async with asyncio.TaskGroup() as players:
            async for data in frames:
                frame = pb.GenerateMultiplexedRequest.FromString(data)
                for submit in frame.submits:
                    ids[submit.handle] = submit.generate.request_id
                    timeout = submit.timeout.ToNanoseconds() / 1e9 if submit.HasField("timeout") else None
                    self.received.append(Received(submit.generate, dict(submit.metadata), timeout))
                    players.create_task(play(submit.handle, self._script(submit.generate), outgoing))
                self.aborted += [ids[handle] for handle in frame.abort.handles]

    def _script(self, request: pb.GenerateRequest) -> Script:
        return self.scripts.get(request.request_id, GOOD_ANSWER)


async def play(handle: int, script: Script, outgoing: asyncio.Queue[Step]) -> None:
    """A script as frames: bare tokens as rows, everything else as events."""
    outgoing.put_nowait(event(handle, accepted=pb.Accepted(engine_lifetime_id="life")))
    for step in script:
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, float):
            await asyncio.sleep(step)
        elif isinstance(step, pb.Status):
            outgoing.put_nowait(event(handle, status=step))
        elif isinstance(step, pb.LLMEngineOutput):
            is_bare = {found.name for found, _ in step.ListFields()} <= BARE_FIELDS
            outgoing.put_nowait(row(handle, step) if is_bare else event(handle, output=step))
        elif isinstance(step, pb.EngineEvent):
            outgoing.put_nowait(event(handle, engine_event=step))
        else:
            outgoing.put_nowait(step(handle) if callable(step) else step)


def event(handle: int, **fields: object) -> bytes:
    """A frame with one event."""
    return pb.GenerateMultiplexedResponse(
        events=[pb.HandleEvent(handle=handle, **fields)]
    ).SerializeToString()


def row(handle: int, output: pb.LLMEngineOutput) -> bytes:
    """A frame with one row."""
    return pb.GenerateMultiplexedResponse(
        handles=[handle],
        indexes=[output.index],
        token_counts=[len(output.token_ids)],
        first_output_positions=[output.first_output_position],
        token_ids=output.token_ids,
    ).SerializeToString()


def response(output: pb.LLMEngineOutput | pb.EngineEvent) -> bytes:
    """A message of Generate."""
    if isinstance(output, pb.EngineEvent):
        return pb.GenerateResponse(engine_event=output, engine_lifetime_id="life").SerializeToString()
    return pb.GenerateResponse(output=output, engine_lifetime_id="life").SerializeToString()


def engine_info() -> pb.GetEngineInfoResponse:
    """An engine of the mocker's vocabulary."""
    info = pb.GetEngineInfoResponse(
        engine_lifetime_id="life",
        contract_revision=pb.CONTRACT_REVISION,
        minimum_client_revision=pb.CONTRACT_REVISION,
        maximum_client_revision=pb.CONTRACT_REVISION,
    )
    info.config.vocab_size = VOCAB_SIZE
    info.config.eos_token_ids.append(VOCAB_SIZE - 1)
    info.config.capabilities.multiplexed = True
    return info


async def abort_with(call: grpc.aio.ServicerContext, status: pb.Status) -> None:
    """End a call with a status, its details as trailers when it has any."""
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    trailers = (("grpc-status-details-bin", status.SerializeToString()),) if status.details else ()
    await call.abort(code, status.message, trailers)
