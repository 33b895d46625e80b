"""From failures to gRPC status, and the status details that go with it.

Holds no RPC and no engine: exceptions go in, `pb.Status` and trailing metadata come out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from enginewire import v1 as pb
from enginewire.server.failures import ERROR_ID, EngineError, NotAllowed, give_id, internal
from enginewire.v1.status_codes import STATUS_CODES

DOMAIN: Final = "enginewire"
DETAILS_KEY: Final = "grpc-status-details-bin"
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
# Trailers share an 8 KiB budget with everything else a proxy adds; the contract promises 4 KiB.
MAX_MESSAGE_CHARS: Final = 512

INTERNAL: Final = frozenset({pb.ERROR_REASON_INTERNAL, pb.ERROR_REASON_UNSPECIFIED})


def code_of(reason: pb.ErrorReason.ValueType) -> grpc.StatusCode:
    """The gRPC status code of a reason."""
    return STATUS_CODES[reason]


def code_of_failure(failure: EngineError) -> grpc.StatusCode:
    """The code of its reason; AUTH has two, for whoever is not known and for whoever is and may not."""
    if isinstance(failure, NotAllowed):
        return grpc.StatusCode.PERMISSION_DENIED
    return code_of(failure.reason)


def as_failure(exception: BaseException) -> EngineError:
    """The failure to report: itself, or INTERNAL for an exception that nobody expected.

    The text of an unexpected exception never reaches the caller: it may hold paths or prompts. Whatever is
    INTERNAL has an opaque id from here on, under which the log has the rest.
    """
    failure = exception if isinstance(exception, EngineError) else internal("", exception)
    if failure.reason in INTERNAL:
        give_id(failure)
    return failure


def message_of(failure: EngineError) -> str:
    """The failure in one line of printable ASCII, whatever a caller wrote into its request."""
    text, error_id = str(failure), failure.metadata.get(ERROR_ID)
    if error_id:
        text = f"internal error {error_id}: {text}" if text else f"internal error {error_id}"
    escaped = text.encode("unicode_escape").decode("ascii")
    return escaped[:MAX_MESSAGE_CHARS]


def to_status(failure: EngineError) -> pb.Status:
    """The failure as a wire message, our ErrorDetail first, then google's for generic tools."""
    failure = as_failure(failure)  # the one way out: no INTERNAL leaves without its id
    message = message_of(failure)
    return pb.Status(
        code=code_of_failure(failure).value[0],
        message=message,
        details=[_packed(detail) for detail in _details(failure, message)],
    )


def trailers(failure: EngineError) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata that carries the details of a non-OK status."""
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, to_status(failure).SerializeToString())]
    if failure.retry_after is not None:
        metadata.append((PUSHBACK_KEY, str(round(failure.retry_after * 1000))))
    return tuple(metadata)


def _details(failure: EngineError, message: str) -> Iterable[Message]:
    reason = pb.ErrorReason.Name(failure.reason).removeprefix("ERROR_REASON_")
    delay = None if failure.retry_after is None else _duration(failure.retry_after)
    yield pb.ErrorDetail(
        reason=failure.reason,
        field=failure.field,
        retryable=failure.retryable,
        retry_after=delay,
        metadata=failure.metadata,
    )
    yield error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=failure.metadata)
    if failure.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=failure.field, description=message)
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if delay is not None:
        yield error_details_pb2.RetryInfo(retry_delay=delay)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed
