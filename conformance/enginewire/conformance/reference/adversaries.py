"""Servers that are no engine at all. None of them may get a single PASS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from enginewire.grpc_server import bare_server

Behaviour = Callable[[], AsyncIterator[bytes]]


async def null() -> AsyncIterator[bytes]:
    """Every call is UNIMPLEMENTED: see `_Handler`."""
    return
    yield b""


async def hang() -> AsyncIterator[bytes]:
    """Accepts and never answers."""
    await asyncio.Event().wait()
    yield b""


async def echo_ok() -> AsyncIterator[bytes]:
    """One empty message and OK, whatever was asked."""
    yield b""


async def silent_ok() -> AsyncIterator[bytes]:
    """OK without a message."""
    return
    yield b""


async def garbage() -> AsyncIterator[bytes]:
    """Random bytes and OK."""
    for _ in range(3):
        yield random.Random(7).randbytes(64)


ADVERSARIES: dict[str, Behaviour] = {
    "null": null,
    "hang": hang,
    "echo_ok": echo_ok,
    "silent_ok": silent_ok,
    "garbage": garbage,
}


class Adversary:
    """A server with one behaviour for every method there is."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def serve(self, target: str) -> grpc.aio.Server:
        """Listen; returns the running server."""
        server = bare_server()
        server.add_generic_rpc_handlers([_Handler(self.name)])
        server.add_insecure_port(target)
        await server.start()
        return server

    async def shut_down(self, server: grpc.aio.Server) -> None:
        """Stop listening."""
        await server.stop(0)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, name: str) -> None:
        self._name = name

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        # Without a handler gRPC itself answers UNIMPLEMENTED.
        return None if self._name == "null" else grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for message in ADVERSARIES[self._name]():
            yield message
