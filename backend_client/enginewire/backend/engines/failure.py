"""Why a request failed: one value and one exception for every cause.

Reads the contract's Status, whether it came as an event, as trailers or not at all. Knows nothing
about streams or text.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from enginewire import v1 as pb

log = logging.getLogger(__name__)

DETAILS_KEY: Final = "grpc-status-details-bin"
ERROR_ID: Final = "error_id"
CALLER_LIMIT: Final = "caller_limit"
# The contract promises less than 4 KiB for a whole status.
MAX_MESSAGE_CHARS: Final = 4096

# What a bare code means: a status without details comes from gRPC itself, or from something in between.
REASON_OF_CODE: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: pb.ERROR_REASON_INVALID_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: pb.ERROR_REASON_INVALID_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: pb.ERROR_REASON_UNSUPPORTED,
    grpc.StatusCode.NOT_FOUND: pb.ERROR_REASON_MODEL_NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: pb.ERROR_REASON_DUPLICATE_ID,
    # gRPC's own limits are limits of size.
    grpc.StatusCode.RESOURCE_EXHAUSTED: pb.ERROR_REASON_TOO_LARGE,
    grpc.StatusCode.UNAVAILABLE: pb.ERROR_REASON_ENGINE_DEAD,
    grpc.StatusCode.DEADLINE_EXCEEDED: pb.ERROR_REASON_DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED: pb.ERROR_REASON_CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED: pb.ERROR_REASON_AUTH,
    grpc.StatusCode.PERMISSION_DENIED: pb.ERROR_REASON_AUTH,
}
# gRPC's own words for bytes that are no HTTP/2 or no TLS, and for a call that was reset: CANCELLED when a
# server that ends does it, for what is cancelled here ends as an asyncio.CancelledError. An engine gives its
# reason.
CODES_OF_BROKEN_CALLS: Final = frozenset(
    {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}
)
CODE_NUMBERS: Final = {code.value[0]: code for code in grpc.StatusCode}
KNOWN_REASONS: Final = frozenset(pb.ErrorReason.values()) - {pb.ERROR_REASON_UNSPECIFIED}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed. `code` is a gRPC status code, `retry_after` in seconds.

    `field` is the path of what is at fault below the request, "" when no single field is. An internal failure
    has an `error_id`, under which the log of whoever failed has more. `caller_limit` names the limit of the
    caller that is in the way.
    """

    code: int
    reason: pb.ErrorReason.ValueType
    message: str
    retryable: bool = False
    field: str = ""
    retry_after: float | None = None
    error_id: str = ""
    caller_limit: str = ""

    def to_proto(self) -> pb.Status:
        """A status with everything else in its ErrorDetail."""
        detail = pb.ErrorDetail(reason=self.reason, field=self.field, retryable=self.retryable)
        if self.retry_after is not None:
            detail.retry_after.CopyFrom(duration(self.retry_after))
        if self.error_id:
            detail.metadata[ERROR_ID] = self.error_id
        if self.caller_limit:
            detail.metadata[CALLER_LIMIT] = self.caller_limit
        status = pb.Status(code=self.code, message=self.message)
        status.details.add().Pack(detail)
        return status

    @classmethod
    def from_proto(cls, status: pb.Status) -> Failure:
        """The value of a status; without an ErrorDetail the code says what it can."""
        code = CODE_NUMBERS.get(status.code, grpc.StatusCode.UNKNOWN)
        reason = REASON_OF_CODE.get(code, pb.ERROR_REASON_INTERNAL)
        message = one_line(status.message)
        detail = _detail(status.details)
        if detail is None:
            return cls(code.value[0], reason, message, retryable=code is grpc.StatusCode.UNAVAILABLE)
        return cls(
            code.value[0],
            detail.reason if detail.reason in KNOWN_REASONS else reason,
            message,
            detail.retryable,
            one_line(detail.field),
            max(0.0, detail.retry_after.ToNanoseconds() / 1e9) if detail.HasField("retry_after") else None,
            one_line(detail.metadata[ERROR_ID]),
            one_line(detail.metadata[CALLER_LIMIT]),
        )


class RequestFailed(Exception):
    """A request failed; what was delivered before stays valid."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def status(self) -> pb.Status:
        """The failure as a message."""
        return self.failure.to_proto()

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        return CODE_NUMBERS[self.failure.code]

    @property
    def reason(self) -> pb.ErrorReason.ValueType:
        """The cause."""
        return self.failure.reason

    @property
    def retryable(self) -> bool:
        """The same request may succeed elsewhere or later."""
        return self.failure.retryable


def failed(
    code: grpc.StatusCode,
    reason: pb.ErrorReason.ValueType,
    message: str,
    *,
    retryable: bool = False,
    field: str = "",
) -> RequestFailed:
    """A failure that the backend itself found."""
    return RequestFailed(Failure(code.value[0], reason, message, retryable, field))


def internal_failure(message: str, error: BaseException | None = None) -> Failure:
    """A failure with an opaque id, under which the log has the error: its text may hold prompts or paths."""
    error_id = secrets.token_hex(6)
    log.error("internal error %s: %s", error_id, message or "unexpected", exc_info=error)
    text = f"internal error {error_id}: {message}" if message else f"internal error {error_id}"
    code, reason = grpc.StatusCode.INTERNAL.value[0], pb.ERROR_REASON_INTERNAL
    return Failure(code, reason, text, error_id=error_id)


def violation(which: str) -> RequestFailed:
    """The engine broke the contract."""
    return failed(
        grpc.StatusCode.INTERNAL, pb.ERROR_REASON_PROTOCOL_VIOLATION, f"protocol violation: {which}"
    )


def from_status(status: pb.Status) -> RequestFailed:
    """The failure that a Status of the wire describes."""
    if status.code not in CODE_NUMBERS or status.code == grpc.StatusCode.OK.value[0]:
        return violation(f"a failure with status code {status.code}")
    return RequestFailed(Failure.from_proto(status))


def from_rpc_error(error: grpc.aio.AioRpcError, *, is_accepted: bool = False) -> RequestFailed:
    """The failure that ended a call. Causes are told apart by code and details, never by text.

    gRPC's own word for a broken call is a lost engine. `is_accepted`: the engine had answered before, so
    gRPC can have refused nothing but an answer.
    """
    details = _trailing_details(error)
    if not details and is_accepted and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return violation("a message above the size limit")
    failure = from_status(
        pb.Status(code=error.code().value[0], message=error.details() or "", details=details)
    )
    if not details and error.code() in CODES_OF_BROKEN_CALLS:
        lost = pb.ERROR_REASON_ENGINE_DEAD
        return RequestFailed(replace(failure.failure, reason=lost, retryable=True))
    return failure


def duration(seconds: float) -> Duration:
    """A protobuf duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def one_line(text: str) -> str:
    """Text of an engine, fit for a terminal and a log, of bounded length."""
    text = text[:MAX_MESSAGE_CHARS]
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def _trailing_details(error: grpc.aio.AioRpcError) -> Iterable[Any]:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return pb.Status.FromString(value).details
            except DecodeError:
                return ()
    return ()


def _detail(details: Iterable[Any]) -> pb.ErrorDetail | None:
    detail = pb.ErrorDetail()
    for packed in details:
        try:
            if packed.Unpack(detail):
                return detail
        except DecodeError:
            return None
    return None
