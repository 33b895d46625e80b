"""The wire of the reference: a gRPC server that calls the methods of `service`, four lines per RPC."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from enginewire import v1 as pb
from enginewire.conformance.reference.capabilities.adapters import Adapters
from enginewire.conformance.reference.capabilities.embeddings import Embeddings
from enginewire.conformance.reference.capabilities.kv_events import KvEvents
from enginewire.conformance.reference.capabilities.metrics import Metrics
from enginewire.conformance.reference.capabilities.multiplexed import NAME as MULTIPLEXED, Multiplexed
from enginewire.conformance.reference.capabilities.prompt_embeds import PromptEmbeds
from enginewire.conformance.reference.capabilities.stop_strings import StopStrings
from enginewire.conformance.reference.capabilities.thinking import Thinking
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import KEEPALIVE_MS
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.methods import methods
from enginewire.grpc_server import bare_server

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]

STOP_SECONDS = 0.2


class Reference(Multiplexed, PromptEmbeds, Embeddings, Adapters, KvEvents, Thinking, StopStrings, Metrics):
    """The reference server. Mutants are subclasses of it."""

    credentials: grpc.ServerCredentials | None = None
    """With them it speaks TLS."""

    gates: frozenset[str] = frozenset()
    """What is true of it that the kit has to be told."""

    async def serve(self, target: str) -> grpc.aio.Server:
        """Listen at `host:port` or `unix:/path` and start the engine; returns the running server."""
        server = bare_server(*self.server_options())
        server.add_generic_rpc_handlers(self.handlers())
        if self.credentials:
            server.add_secure_port(target, self.credentials)
        else:
            server.add_insecure_port(target)
        await self.open_parts()
        await server.start()
        self._tasks = [asyncio.ensure_future(self.start()), asyncio.ensure_future(self.run())]
        for task in self._tasks:
            task.add_done_callback(_show_crash)
        return server

    async def shut_down(self, server: grpc.aio.Server) -> None:
        """Stop listening and stepping."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.stop(STOP_SECONDS)
        await self.close_parts()

    def connection(self, target: str) -> Connection:
        """How to reach what listens at `target`."""
        return Connection(target=target)

    def other_half(self) -> type[Reference] | None:
        """The server that belongs to this one when requests are disaggregated."""
        return None

    def server_options(self) -> list[tuple[str, int]]:
        """Channel arguments of the server."""
        # Keepalive much quicker than anyone's in earnest, for requests here are short.
        return [
            ("grpc.max_receive_message_length", self.settings.max_request_bytes),
            ("grpc.keepalive_time_ms", 500),
            ("grpc.keepalive_timeout_ms", 2000),
            ("grpc.http2.ping_timeout_ms", 2000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
            ("grpc.keepalive_permit_without_calls", 1),
        ]

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Every service that is served."""
        served: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        for name, answer in self.routes().items():
            method = methods()[name]
            service, _, rpc = method.path.strip("/").rpartition("/")
            make = _multiplexed if name == MULTIPLEXED else _stream if name in self.streaming() else _unary
            served.setdefault(service, {})[rpc] = make(partial(self.parsed, method.request), answer)
        return [grpc.method_handlers_generic_handler(service, rpcs) for service, rpcs in served.items()]

    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        """The request in these bytes; Refusal when they are none."""
        try:
            return request_class.FromString(payload)
        except DecodeError:
            raise invalid("", "the bytes do not parse", len(payload), "a message") from None

    def streaming(self) -> set[str]:
        """The routes that answer with a stream."""
        return {
            "EngineService.Generate",
            "EngineService.Drain",
            "DiscoveryService.WatchLoad",
            "DiscoveryService.GetTokenizer",
            "KvService.SubscribeKvEvents",
            health_types.WATCH,
        }

    def routes(self) -> dict[str, Callable[[Any, Call], Any]]:
        """What answers each RPC: an awaitable message, or an iterator of messages."""
        return {
            "EngineService.Generate": self.generate,
            "EngineService.Abort": lambda request, call: self.abort_requests(request),
            "EngineService.Drain": lambda request, call: self.drain(request),
            "EngineService.Cleanup": lambda request, call: self.asked_to_clean_up(request),
            "DiscoveryService.GetEngineInfo": lambda request, call: self.info(),
            "DiscoveryService.GetLoad": lambda request, call: self.get_load(),
            "DiscoveryService.WatchLoad": lambda request, call: self.watch_load(request),
            health_types.CHECK: self._check_health,
            health_types.WATCH: self._watch_health,
            **self.parts(),
        }

    async def asked_to_clean_up(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        """Cleanup where it is offered; a signal cleans up in any case."""
        self.require("cleanup")
        return await self.cleanup(request)

    async def _check_health(self, request: Message, call: Call) -> Message:
        return health_types.response(await self.check_health(health_types.service_of(request)))

    async def _watch_health(self, request: Message, call: Call) -> AsyncIterator[Message]:
        async for status in self.watch_health(health_types.service_of(request)):
            yield health_types.response(status)


def _show_crash(task: asyncio.Task[None]) -> None:
    """A mutant whose engine crashes looks like one that hangs: its author has to see it."""
    if not task.cancelled() and (crash := task.exception()):
        traceback.print_exception(crash)


def _unary(
    parse: Callable[[bytes], M], answer: Callable[[M, Call], Awaitable[Message]]
) -> grpc.RpcMethodHandler[Any, Any]:
    async def serve(payload: bytes, context: Context) -> bytes:
        try:
            return (await answer(parse(payload), Call(context))).SerializeToString()
        except Refusal as refusal:
            return await _refuse(context, refusal)

    return grpc.unary_unary_rpc_method_handler(serve)


def _stream(
    parse: Callable[[bytes], M], answer: Callable[[M, Call], AsyncGenerator[Message, None]]
) -> grpc.RpcMethodHandler[Any, Any]:
    async def serve(payload: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async with aclosing(answer(parse(payload), Call(context))) as messages:
                async for message in messages:
                    yield message.SerializeToString()
        except Refusal as refusal:
            await _refuse(context, refusal)

    return grpc.unary_stream_rpc_method_handler(serve)


def _multiplexed(
    parse: Callable[[bytes], M], answer: Callable[[AsyncIterator[M], Call], AsyncGenerator[Message, None]]
) -> grpc.RpcMethodHandler[Any, Any]:
    async def parsed(payloads: AsyncIterator[bytes]) -> AsyncIterator[M]:
        async for payload in payloads:
            yield parse(payload)

    async def serve(payloads: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        try:
            async with aclosing(answer(parsed(payloads), Call(context))) as messages:
                async for message in messages:
                    yield message.SerializeToString()
        except Refusal as refusal:
            await _refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(serve)


async def _refuse(context: Context, refusal: Refusal) -> bytes:
    await context.abort(refusal.code, refusal.message, refusal.trailers())
    raise AssertionError("abort raises")
