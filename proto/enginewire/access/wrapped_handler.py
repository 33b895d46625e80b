"""RPC handlers with something around them, of whichever of gRPC's four kinds they are."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import grpc

AnyCall = grpc.aio.ServicerContext[Any, Any]  # whatever its messages are, it is treated in the same way
AnyHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour = Callable[..., Any]
Around = Callable[[AnyCall], AbstractAsyncContextManager[None]]


def wrapped(handler: AnyHandler, around: Around) -> AnyHandler:
    """The same handler, inside of what `around` makes for each call."""
    read, write = handler.request_deserializer, handler.response_serializer
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_answer(handler.unary_unary, around), read, write)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(_answer(handler.stream_unary, around), read, write)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_stream(handler.unary_stream, around), read, write)
    assert handler.stream_stream, "there are four kinds of RPCs"
    return grpc.stream_stream_rpc_method_handler(_stream(handler.stream_stream, around), read, write)


def _answer(behaviour: Behaviour, around: Around) -> Behaviour:
    async def answer(request: Any, call: AnyCall) -> Any:
        async with around(call):
            return await behaviour(request, call)

    return answer


def _stream(behaviour: Behaviour, around: Around) -> Behaviour:
    """gRPC asks for one of two kinds, and takes no other: messages that are yielded, or written."""

    async def yielding(request: Any, call: AnyCall) -> AsyncIterator[Any]:
        async with around(call), contextlib.aclosing(behaviour(request, call)) as messages:
            async for message in messages:
                yield message

    return yielding if inspect.isasyncgenfunction(behaviour) else _answer(behaviour, around)
