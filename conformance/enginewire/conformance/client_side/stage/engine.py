"""An engine server that plays scripts: what a backend under test is connected to.

Each script belongs to a prompt, so checks run beside each other. Every call of the backend is kept as a
Turn, with what it sent and when it left. Judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage import alphabet
from enginewire.conformance.client_side.stage.facts import PLAIN, Facts
from enginewire.conformance.client_side.stage.multiplexed_engine import (
    NAME as MULTIPLEXED,
    play_multiplexed,
)
from enginewire.conformance.client_side.stage.script import (
    BEFORE_ACCEPTANCE,
    CANCELLED,
    WITHDRAWN,
    Fail,
    Hold,
    Say,
    Speaker,
    Stay,
    Step,
    Undecided,
)
from enginewire.conformance.client_side.stage.turn import LIFE, Scene, Scripted, Turn
from enginewire.conformance.wire.exchange import DETAILS_KEY, LIFETIME_KEY, Exchange
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.methods import methods
from enginewire.grpc_server import bare_server

GENERATE: Final = "EngineService.Generate"
UNKNOWN_PROMPT: Final = Fail(
    grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_INVALID_REQUEST,
    field="token_ids",
    message="token_ids: no prompt of this kit",
)

CONTEXT = grpc.aio.ServicerContext[Any, Any]


class ScriptedEngine:
    """A server for one backend."""

    def __init__(self, facts: Facts = PLAIN) -> None:
        self.facts = facts
        self.target = ""
        self.turns: list[Turn] = []
        self._scenes: dict[tuple[int, ...], Scene] = {}

    def play(self, prompt: list[int], scripts: Sequence[Sequence[Step]]) -> Scene:
        """Answer this prompt with these scripts."""
        scene = self._scenes[tuple(prompt)] = Scene(prompt, scripts)
        return scene

    async def start(self, target: str) -> None:
        """Listen at `host:0` or `unix:/path`; `self.target` is where."""
        self._server = bare_server(*_pings_borne(self.facts))
        self._server.add_generic_rpc_handlers([_Methods(self)])
        port = self._server.add_insecure_port(target)
        self.target = target if target.startswith("unix:") else f"{target.rpartition(':')[0]}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """End every call and the server."""
        await self._server.stop(0)

    async def load(self) -> pb.Load:
        """GetLoad: always ready, with nothing to do."""
        return pb.Load(state=pb.ENGINE_STATE_READY, engine_lifetime_id=LIFE % 1)

    async def watch_load(self) -> AsyncIterator[Message]:
        """WatchLoad: the same for ever."""
        yield pb.WatchLoadResponse(load=await self.load())
        await asyncio.Event().wait()

    async def embed(self, request: pb.EmbedRequest) -> pb.EmbedResponse:
        """Embed: vectors that tell inputs apart, whatever their order. Raises Scripted for an unknown id."""
        inputs = [list(each.token_ids) for each in request.request.token_ids]
        for place, each in enumerate(inputs):
            if alphabet.UNKNOWN in each:
                raise Scripted(refused_input(place))
        total = sum(map(len, inputs))
        output = pb.EmbeddingsEngineOutput(
            embeddings=[pb.Embedding(values=vector_of(each)) for each in inputs],
            prompt_tokens=total,
            total_tokens=total,
        )
        return pb.EmbedResponse(output=output, request_id=request.request_id)

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
        metadata = {
            key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        turn = self.turn(request, context.time_remaining(), GENERATE, metadata)
        try:
            script = self.script(turn)
            if not isinstance(script[0], BEFORE_ACCEPTANCE):
                await context.send_initial_metadata(((LIFETIME_KEY, turn.lifetime_id),))
            async for output in self.outputs(turn, script, Speaker(turn.part)):
                yield turn.arrive(self._response(turn, output))
            turn.exchange.code = grpc.StatusCode.OK
        except Scripted as failure:
            await _abort_with(failure.step, context)
        except (asyncio.CancelledError, GeneratorExit):
            # Cancelled while a message is on its way, grpc.aio drops this iterator instead of cancelling it.
            turn.leave()
            raise
        finally:
            turn.exchange.ended_at = turn.exchange.ended_at or time.monotonic()

    def turn(
        self,
        request: pb.GenerateRequest,
        seconds_left: float | None,
        method: str,
        metadata: Mapping[str, str],
    ) -> Turn:
        """A request of the backend, kept from now on."""
        exchange = Exchange(f"{method} (of the backend)", request, started_at=time.monotonic())
        turn = Turn(request, exchange, seconds_left, metadata)
        self.turns.append(turn)
        return turn

    def script(self, turn: Turn) -> Sequence[Step]:
        """What is due for this attempt."""
        scene = self._scenes.get(tuple(turn.part.token_ids))
        return scene.begin(turn) if scene else [UNKNOWN_PROMPT]

    async def outputs(
        self, turn: Turn, script: Sequence[Step], speaker: Speaker
    ) -> AsyncIterator[pb.LLMEngineOutput | pb.EngineEvent]:
        """Everything that a script says. Raises Scripted where it ends with a status."""
        for step in script:
            if isinstance(step, Fail):
                turn.exchange.code, turn.exchange.text = step.code, step.message
                # Before it is sent: a backend may have it, and wait, before this is seen to have ended.
                turn.exchange.ended_at = time.monotonic()
                raise Scripted(step)
            if isinstance(step, Say):
                yield speaker.output(step)
                turn.said += 1
            elif isinstance(step, pb.EngineEvent):
                yield step
                turn.said += 1
            elif await self._left(step, turn):
                if isinstance(step, Undecided):
                    turn.exchange.code = WITHDRAWN.code
                    raise Scripted(WITHDRAWN)
                for index in speaker.unfinished:
                    yield speaker.output(Say(finish=CANCELLED, index=index))
                return

    async def _left(self, step: Hold | Stay | Undecided, turn: Turn) -> bool:
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

    def _response(self, turn: Turn, item: pb.LLMEngineOutput | pb.EngineEvent) -> pb.GenerateResponse:
        response = pb.GenerateResponse(
            request_id=turn.request.request_id, engine_lifetime_id="" if turn.said else turn.lifetime_id
        )
        if isinstance(item, pb.EngineEvent):
            response.engine_event.CopyFrom(item)
        else:
            response.output.CopyFrom(item)
        return response


def _pings_borne(facts: Facts) -> list[tuple[str, int]]:
    """What ends a connection with pings more often than advertised; timers are not that exact."""
    if facts.min_keepalive_ms is None:
        return []
    return [
        ("grpc.http2.min_ping_interval_without_data_ms", facts.min_keepalive_ms * 3 // 4),
        ("grpc.http2.max_ping_strikes", 1),
    ]


def refused_input(place: int) -> Fail:
    """What it says of an input that it does not take."""
    field = f"token_ids[{place}]"
    code, reason = grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID_REQUEST
    return Fail(code, reason, field=field, message=f"{field}: refused by the script")


def vector_of(token_ids: Sequence[int]) -> list[float]:
    """What this engine makes of an input."""
    return [float(len(token_ids)), float(token_ids[0]), float(sum(token_ids))]


class _Methods(grpc.GenericRpcHandler):
    """The RPCs of a scripted engine by their paths; every other one is UNIMPLEMENTED."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        by_path = {method.path: method for method in methods().values()}
        method = by_path.get(handler_call_details.method)
        if method is None:
            return None
        if method.name == MULTIPLEXED and self._engine.facts.multiplexed:
            return grpc.stream_stream_rpc_method_handler(
                partial(play_multiplexed, self._engine),
                request_deserializer=pb.GenerateMultiplexedRequest.FromString,
                response_serializer=pb.GenerateMultiplexedResponse.SerializeToString,
            )
        if method.name not in ANSWERS:
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
    yield engine.facts.info()


async def _load(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    yield pb.GetLoadResponse(load=await engine.load())


async def _watch(engine: ScriptedEngine, request: Message, context: CONTEXT) -> AsyncIterator[Message]:
    async for message in engine.watch_load():
        yield message


async def _tokenizer(
    engine: ScriptedEngine, request: pb.GetTokenizerRequest, context: CONTEXT
) -> AsyncIterator[Message]:
    for message in alphabet.answers(request.if_none_match, engine.facts.strips_first_space):
        yield message


async def _embed(
    engine: ScriptedEngine, request: pb.EmbedRequest, context: CONTEXT
) -> AsyncIterator[Message]:
    try:
        yield await engine.embed(request)
    except Scripted as refused:
        await _abort_with(refused.step, context)


async def _abort_with(step: Fail, context: CONTEXT) -> None:
    await context.abort(step.code, step.message, ((DETAILS_KEY, step.detail.SerializeToString()),))


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
    "EmbeddingService.Embed": _embed,
    "EngineService.Abort": _abort,
    GENERATE: _generate,
    health_types.CHECK: _health,
    health_types.WATCH: _watch_health,
}
