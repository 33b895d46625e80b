"""What the end of a call to the engine means for its request.

The engine's own words are for the log: they may hold paths or prompts. Knows nothing about other requests.
"""

from __future__ import annotations

import logging
import re
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from enginewire import v1 as pb
from enginewire.server.failures import (
    DeadlineExceeded,
    EngineDead,
    EngineError,
    EngineMistake,
    InvalidRequest,
    KvExhausted,
)
from enginewire.server.status import DETAILS_KEY

log = logging.getLogger(__name__)

FIELD: Final = re.compile(r"[a-z0-9_.\[\]]{1,128}")
MOST_WORDS: Final = 500

CODES_OF_LOSS: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""What is cancelled here ends as an asyncio.CancelledError. Here it is a reset by an engine that ends."""


def failure_of(error: grpc.aio.AioRpcError, request_id: str) -> EngineError:
    """The failure of a request whose call ended so, after it was accepted here."""
    code, detail = error.code(), _detail(error)
    words = f"request {request_id}: the engine's status is {code.name}: {_words(error)}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the deadline passed")
    if code in CODES_OF_LOSS:
        log.warning("%s", words)
        return EngineDead("the engine went away")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        log.warning("%s", words)
        field = detail.field if FIELD.fullmatch(detail.field) else ""
        return InvalidRequest(f"{field or 'request'}: the engine cannot serve this", field=field)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and detail.reason == pb.ERROR_REASON_KV_EXHAUSTED:
        return KvExhausted("the request alone needs more KV blocks than there are")
    return EngineMistake(words)


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """True when the connection may be gone, and not the engine alone have refused."""
    return error.code() in CODES_OF_LOSS and not _detail(error).reason


def shown(error: grpc.aio.AioRpcError) -> str:
    """Code and text on one line of bounded length, for the operator."""
    return f"{error.code().name}: {_words(error)}"


def _words(error: grpc.aio.AioRpcError) -> str:
    text = (error.details() or "")[:MOST_WORDS]
    return text.encode("unicode_escape").decode("ascii")


def _detail(error: grpc.aio.AioRpcError) -> pb.ErrorDetail:
    """Empty where there is none that can be read."""
    detail = pb.ErrorDetail()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                for packed in pb.Status.FromString(value).details:
                    if packed.Unpack(detail):
                        return detail
            except DecodeError:
                break
    return pb.ErrorDetail()
