"""Registers a servicer under raw-bytes handlers: parse, call, serialize, map errors, in one place.

grpc.aio would answer UNKNOWN with the exception's text to malformed bytes and to anything a handler
raises. Here bytes are parsed inside the handler and every failure goes through `status`. Knows nothing
about what the RPCs do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from enginewire.access.access import Denied, Unknown
from enginewire.server import status
from enginewire.server.failures import InvalidRequest, NotAllowed, NotKnown

Call = grpc.aio.ServicerContext[bytes, bytes]
Unary = Callable[[Message, Call], Awaitable[Message]]
Streaming = Callable[[Message, Call], AsyncGenerator[Message, None]]
Multiplexed = Callable[[AsyncIterator[Message], Call], AsyncGenerator[Message, None]]


def text_metadata(call: Call) -> Mapping[str, str]:
    """What came with a call under keys of text."""
    pairs = call.invocation_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def handlers(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """Handlers for the methods of `service` that `servicer` has; gRPC answers UNIMPLEMENTED to the others."""
    served = [method for method in service.methods if hasattr(servicer, method.name)]
    return grpc.method_handlers_generic_handler(
        service.full_name, {method.name: _handler(method, servicer) for method in served}
    )


def _handler(method: MethodDescriptor, servicer: object) -> grpc.RpcMethodHandler[bytes, bytes]:
    behaviour = getattr(servicer, method.name)
    parse = _parser(method)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(_stream_stream(behaviour, parse))
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_unary_stream(behaviour, parse))
    return grpc.unary_unary_rpc_method_handler(_unary_unary(behaviour, parse))


def _parser(method: MethodDescriptor) -> Callable[[bytes], Message]:
    message_class = message_factory.GetMessageClass(method.input_type)

    def parse(data: bytes) -> Message:
        try:
            return message_class.FromString(data)
        except DecodeError as error:
            raise InvalidRequest("request: malformed protobuf") from error

    return parse


def _unary_unary(
    behaviour: Unary, parse: Callable[[bytes], Message]
) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def handle(data: bytes, call: Call) -> bytes:
        try:
            return (await behaviour(parse(data), call)).SerializeToString()
        except Exception as error:  # noqa: BLE001  # the outermost boundary: nothing may become UNKNOWN
            await _fail(call, error)

    return handle


def _unary_stream(
    behaviour: Streaming, parse: Callable[[bytes], Message]
) -> Callable[[bytes, Call], AsyncIterator[bytes]]:
    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        try:
            async with contextlib.aclosing(behaviour(parse(data), call)) as messages:
                async for message in messages:
                    yield message.SerializeToString()
        except Exception as error:  # noqa: BLE001  # the outermost boundary: nothing may become UNKNOWN
            await _fail(call, error)

    return handle


def _stream_stream(
    behaviour: Multiplexed, parse: Callable[[bytes], Message]
) -> Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]:
    async def handle(frames: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        try:
            async with contextlib.aclosing(behaviour(_parsed(frames, parse), call)) as messages:
                async for message in messages:
                    yield message.SerializeToString()
        except Exception as error:  # noqa: BLE001  # the outermost boundary: nothing may become UNKNOWN
            await _fail(call, error)

    return handle


async def _parsed(frames: AsyncIterator[bytes], parse: Callable[[bytes], Message]) -> AsyncIterator[Message]:
    async for frame in frames:
        yield parse(frame)


async def refuse_caller(call: grpc.aio.ServicerContext[Any, Any], denied: Denied) -> NoReturn:
    """End the call of somebody who is not known, or not allowed here."""
    message = str(denied)
    await _fail(call, NotKnown(message) if isinstance(denied, Unknown) else NotAllowed(message))


async def _fail(call: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    if isinstance(error, (grpc.aio.AbortError, asyncio.CancelledError)):
        raise error
    if not isinstance(error, grpc.aio.InternalError):
        failure = status.as_failure(error)
        details = status.code_of_failure(failure), status.message_of(failure), status.trailers(failure)
        with contextlib.suppress(grpc.aio.InternalError):
            await call.abort(*details)
    # gRPC could not send: the caller has left, and the cancellation only comes behind that.
    raise asyncio.CancelledError("the caller has left")
