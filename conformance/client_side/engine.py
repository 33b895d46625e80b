"""An engine server that plays scripts: what a backend under test is connected to.

Each script belongs to a prompt, so checks run beside each other. Every call of the backend is kept as a
Turn, with what it sent and when it left. Judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from conformance import health_types
from conformance.client_side import alphabet
from conformance.client_side.script import CANCELLED, Fail, Hold, Say, Speaker, Stay, Step
from conformance.exchange import DETAILS_KEY, Arrived, Exchange
from conformance.methods import methods
from enginewire import v1 as pb
from enginewire.v1 import revision

MODEL: Final = "scripted"
LIFE: Final = "life-%d"
"""Each attempt of a request meets another life of the engine."""
LOAD_SECONDS: Final = 0.05

CONTEXT = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True, eq=False)
class Turn:
    """One Generate of the backend, as the engine saw it."""

    request: pb.GenerateRequest
    exchange: Exchange
    lifetime_id: str
    seconds_left: float | None
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The backend cancelled the call or aborted the request."""
    said: int = 0

    @property
    def part(self) -> pb.PreprocessedRequest:
        """What it asks for."""
        return self.request.request


@dataclass(slots=True, eq=False)
class Scene:
    """A prompt and what the engine answers to it: a script per attempt, the last one for all further ones."""

    prompt: list[int]
    scripts: Sequence[Sequence[Step]]
    turns: list[Turn] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, turn: Turn) -> Sequence[Step]:
        """The script of the next attempt."""
        self.turns.append(turn)
        self.arrived.set()
        return self.scripts[min(len(self.turns), len(self.scripts)) - 1]


class ScriptedEngine:
    """A server for one backend. `revisions`: oldest and newest client revision it says it accepts."""

    def __init__(
        self,
        *,
        resume: bool = True,
        revisions: tuple[int, int] = (pb.CONTRACT_REVISION, pb.CONTRACT_REVISION),
    ) -> None:
        self.target = ""
        self.turns: list[Turn] = []
        self._resume = resume
        self._revisions = revisions
        self._scenes: dict[tuple[int, ...], Scene] = {}

    def play(self, prompt: list[int], scripts: Sequence[Sequence[Step]]) -> Scene:
        """Answer this prompt with these scripts."""
        scene = self._scenes[tuple(prompt)] = Scene(prompt, scripts)
        return scene

    async def start(self, target: str) -> None:
        """Listen at `host:0` or `unix:/path`; `self.target` is where."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([_Methods(self)])
        port = self._server.add_insecure_port(target)
        self.target = target if target.startswith("unix:") else f"{target.rpartition(':')[0]}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """End every call and the server."""
        await self._server.stop(0)

    async def info(self) -> pb.GetEngineInfoResponse:
        """GetEngineInfo."""
        oldest, newest = self._revisions
        return pb.GetEngineInfoResponse(
            config=self._config(),
            engine_name="enginewire-conformance",
            engine_version="1",
            instance_id="scripted",
            engine_lifetime_id=LIFE % 1,
            contract_revision=newest,
            minimum_client_revision=oldest,
            maximum_client_revision=newest,
            schema_digest=revision.schema_digest(),
        )

    async def load(self) -> pb.Load:
        """GetLoad: always ready, with nothing to do."""
        return pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id=LIFE % 1)

    async def watch_load(self) -> AsyncIterator[Message]:
        """WatchLoad: the same for ever."""
        yield pb.WatchLoadResponse(load=await self.load())
        await asyncio.Event().wait()

    async def abort(self, request: pb.AbortRequest) -> pb.AbortResponse:
        """Abort: whoever waits on such a request hears that it is over."""
        results = []
        for request_id in request.request_ids:
            live = [turn for turn in self.turns if turn.request.request_id == request_id]
            for turn in live:
                turn.left.set()
            outcome = pb.ABORT_OUTCOME_ABORTED if live else pb.ABORT_OUTCOME_UNKNOWN
            results.append(pb.AbortResult(request_id=request_id, outcome=outcome))
        return pb.AbortResponse(results=results)

    async def generate(self, request: pb.GenerateRequest, context: CONTEXT) -> AsyncIterator[Message]:
        """Generate: plays the script of the prompt."""
        scene = self._scenes.get(tuple(request.request.token_ids))
        if scene is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "token_ids: no prompt of this kit")
        turn = self._turn(request, context, len(scene.turns) + 1)
        try:
            async for response in self._play(scene.begin(turn), turn, context):
                turn.exchange.arrived.append(Arrived(time.monotonic(), response, response.ByteSize()))
                yield response
            turn.exchange.code = grpc.StatusCode.OK
        except (asyncio.CancelledError, GeneratorExit):
            # Cancelled while a message is on its way, grpc.aio drops this iterator instead of cancelling it.
            turn.exchange.code = grpc.StatusCode.CANCELLED
            turn.left.set()
            raise
        finally:
            turn.exchange.ended_at = time.monotonic()

    async def _play(self, script: Sequence[Step], turn: Turn, context: CONTEXT) -> AsyncIterator[Message]:
        speaker = Speaker(turn.part)
        if not isinstance(script[0], Fail):
            await context.send_initial_metadata(())
        for step in script:
            if isinstance(step, Fail):
                await self._fail(step, turn, context)
            elif isinstance(step, Say):
                yield self._response(turn, speaker.output(step))
                turn.said += 1
            elif await self._left(step, turn):
                yield self._response(turn, speaker.output(Say(finish=CANCELLED)))
                return

    async def _left(self, step: Hold | Stay, turn: Turn) -> bool:
        """Wait; True when the backend aborted the request meanwhile."""
        waits = [asyncio.ensure_future(turn.left.wait())]
        if isinstance(step, Hold):
            waits.append(asyncio.ensure_future(step.released.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return turn.left.is_set()

    async def _fail(self, step: Fail, turn: Turn, context: CONTEXT) -> None:
        turn.exchange.code, turn.exchange.text = step.code, step.message
        details = ((DETAILS_KEY, step.detail.SerializeToString()),)
        await context.abort(step.code, step.message, details)

    def _response(self, turn: Turn, output: pb.LLMEngineOutput) -> pb.GenerateResponse:
        return pb.GenerateResponse(
            output=output,
            request_id=turn.request.request_id,
            engine_lifetime_id="" if turn.said else turn.lifetime_id,
        )

    def _turn(self, request: pb.GenerateRequest, context: CONTEXT, number: int) -> Turn:
        exchange = Exchange("EngineService.Generate (of the backend)", request, started_at=time.monotonic())
        turn = Turn(request, exchange, LIFE % number, context.time_remaining())
        self.turns.append(turn)
        return turn

    def _config(self) -> pb.EngineConfig:
        return pb.EngineConfig(
            model=MODEL,
            context_length=4096,
            vocab_size=alphabet.VOCAB_SIZE,
            eos_token_ids=[alphabet.EOS],
            role=pb.ENGINE_ROLE_AGGREGATED,
            capabilities=pb.Capabilities(
                seed=True,
                multiple_choices=True,
                logprobs=True,
                resume=self._resume,
                tokenizer=True,
                default_sampling=pb.SamplingDefaults(temperature=1.0, top_p=1.0, repetition_penalty=1.0),
            ),
            limits=pb.Limits(max_n=8, max_logprobs=8),
        )


class _Methods(grpc.GenericRpcHandler):
    """The RPCs of a scripted engine by their paths; every other one is UNIMPLEMENTED."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        by_path = {method.path: method for method in methods().values()}
        method = by_path.get(handler_call_details.method)
        if method is None or method.name not in ANSWERS:
            return None

        async def answer(request: Any, context: CONTEXT) -> AsyncIterator[Message]:
            async for message in ANSWERS[method.name](self._engine, request, context):
                yield message

        return grpc.unary_stream_rpc_method_handler(
            answer,
            request_deserializer=method.request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )


async def _info(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    yield await engine.info()


async def _load(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    yield pb.GetLoadResponse(load=await engine.load())


async def _watch(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    async for message in engine.watch_load():
        yield message


async def _tokenizer(
    engine: ScriptedEngine, request: pb.GetTokenizerRequest, context: CONTEXT
) -> AsyncIterator[Message]:
    for message in alphabet.answers(request.if_none_match):
        yield message


async def _abort(
    engine: ScriptedEngine, request: pb.AbortRequest, context: CONTEXT
) -> AsyncIterator[Message]:
    yield await engine.abort(request)


async def _generate(
    engine: ScriptedEngine, request: pb.GenerateRequest, context: CONTEXT
) -> AsyncIterator[Message]:
    async for message in engine.generate(request, context):
        yield message


async def _health(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    yield health_types.response(health_types.SERVING)


async def _watch_health(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    yield health_types.response(health_types.SERVING)
    await asyncio.Event().wait()


ANSWERS: Final[dict[str, Any]] = {
    "DiscoveryService.GetEngineInfo": _info,
    "DiscoveryService.GetLoad": _load,
    "DiscoveryService.WatchLoad": _watch,
    "DiscoveryService.GetTokenizer": _tokenizer,
    "EngineService.Abort": _abort,
    "EngineService.Generate": _generate,
    health_types.CHECK: _health,
    health_types.WATCH: _watch_health,
}
