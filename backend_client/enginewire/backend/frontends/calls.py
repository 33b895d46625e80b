"""A gRPC call of one of the faces: the message that its bytes are, and the ways in which it ends.

Knows nothing about what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from enginewire import v1 as pb
from enginewire.access.access import Denied, Unknown
from enginewire.backend.engines.failure import DETAILS_KEY, RequestFailed, failed, internal_failure
from enginewire.backend.prompting.prompts import InvalidPrompt
from enginewire.tracing.trace_context import passed_on

# Status and details share an 8 KiB budget of trailers with whatever a proxy adds.
MAX_MESSAGE_CHARACTERS: Final = 512

T = TypeVar("T")
Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)
AnyCall = grpc.aio.ServicerContext[Any, Any]  # whatever its messages are, it ends in the same way


def unary(
    serve: Callable[[Asked, AnyCall], Awaitable[Answer]], kind: type[Asked]
) -> grpc.RpcMethodHandler[bytes, Answer]:
    """A method that answers once. gRPC itself would call malformed bytes UNKNOWN, and quote its own code."""

    async def handle(data: bytes, call: AnyCall) -> Answer:
        return await serve(await received(kind, data, call), call)

    return grpc.unary_unary_rpc_method_handler(handle, response_serializer=serialized)


def streaming(
    serve: Callable[[Asked, AnyCall], AsyncIterator[Answer]], kind: type[Asked]
) -> grpc.RpcMethodHandler[bytes, Answer]:
    """A method that answers with what it yields."""

    async def handle(data: bytes, call: AnyCall) -> AsyncIterator[Answer]:
        async with contextlib.aclosing(serve(await received(kind, data, call), call)) as answers:  # type: ignore[type-var]  # ours are generators
            async for answer in answers:
                yield answer

    return grpc.unary_stream_rpc_method_handler(handle, response_serializer=serialized)


def writing(
    serve: Callable[[Asked, AnyCall], Awaitable[None]], kind: type[Asked]
) -> grpc.RpcMethodHandler[bytes, Message]:
    """A method that answers with what it writes to the call."""

    async def handle(data: bytes, call: AnyCall) -> None:
        await serve(await received(kind, data, call), call)

    return grpc.unary_stream_rpc_method_handler(handle, response_serializer=serialized)


async def received(kind: type[Asked], data: bytes, call: AnyCall) -> Asked:
    """The message, unless the bytes are none: that ends the call."""
    try:
        return parsed(kind, data)
    except RequestFailed as error:
        await refuse(call, error)


def serialized(message: Message) -> bytes:
    """The bytes of a message."""
    return message.SerializeToString()


def parsed(kind: type[Asked], data: bytes) -> Asked:
    """The message. Raises RequestFailed for bytes that are none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid("request: malformed protobuf") from error


def invalid(message: str, field: str = "") -> RequestFailed:
    """The refusal of a request that no backend may accept."""
    return failed(
        grpc.StatusCode.INVALID_ARGUMENT,
        pb.ERROR_REASON_INVALID_REQUEST,
        message[:MAX_MESSAGE_CHARACTERS],
        field=field,
    )


async def refuse_caller(call: AnyCall, denied: Denied) -> NoReturn:
    """End the call of somebody who is not known, or not allowed here."""
    known = not isinstance(denied, Unknown)
    code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
    await refuse(call, failed(code, pb.ERROR_REASON_AUTH, str(denied)))


def trace_of(call: AnyCall) -> dict[str, str]:
    """The trace in the metadata of a call."""
    pairs = call.invocation_metadata() or ()
    return passed_on({key: value for key, value in pairs if isinstance(value, str)})


async def answered(work: Awaitable[T], call: AnyCall) -> T:
    """What `work` gives. Whatever goes wrong in it ends the call with a status and details."""
    try:
        return await work
    except InvalidPrompt as error:
        await refuse(call, invalid(str(error), error.field))
    except RequestFailed as error:
        await refuse(call, error)
    except (grpc.aio.AbortError, asyncio.CancelledError):
        raise
    except grpc.aio.InternalError as unsent:
        raise left() from unsent
    except Exception as error:  # noqa: BLE001  # the outermost boundary: nothing may become UNKNOWN
        await refuse(call, internal(error))


def internal(error: Exception) -> RequestFailed:
    """The failure that an exception becomes which nobody expected."""
    return RequestFailed(internal_failure("", error))


async def refuse(call: AnyCall, refusal: RequestFailed) -> NoReturn:
    """End a call with the refusal's status and details."""
    message = str(refusal)[:MAX_MESSAGE_CHARACTERS]
    with contextlib.suppress(grpc.aio.InternalError):
        await call.abort(refusal.code, message, ((DETAILS_KEY, refusal.status.SerializeToString()),))
    raise left()


def left() -> asyncio.CancelledError:
    """gRPC could not send: the caller has left, and the cancellation only comes behind that."""
    return asyncio.CancelledError("the caller has left")
