"""Why a call fails, and how that travels: one table from reason to status, one encoding of details."""

from __future__ import annotations

import secrets
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import DETAILS_KEY, Metadata

CODES: Final = {
    pb.ERROR_REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_CONTEXT_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    pb.ERROR_REASON_MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    pb.ERROR_REASON_DUPLICATE_ID: grpc.StatusCode.ALREADY_EXISTS,
    pb.ERROR_REASON_QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_KV_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_ROLE_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_REVISION_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_DRAINING: grpc.StatusCode.UNAVAILABLE,
    pb.ERROR_REASON_NOT_STARTED: grpc.StatusCode.UNAVAILABLE,
    pb.ERROR_REASON_ENGINE_DEAD: grpc.StatusCode.UNAVAILABLE,
    pb.ERROR_REASON_SLOW_CONSUMER: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    pb.ERROR_REASON_HANDOFF_INVALID: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
    pb.ERROR_REASON_CANCELLED: grpc.StatusCode.CANCELLED,
    pb.ERROR_REASON_ADAPTER_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    pb.ERROR_REASON_ADAPTER_LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_ADAPTER_IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
}

RETRYABLE: Final = frozenset(
    {
        pb.ERROR_REASON_QUEUE_FULL,
        pb.ERROR_REASON_DRAINING,
        pb.ERROR_REASON_NOT_STARTED,
        pb.ERROR_REASON_ENGINE_DEAD,
    }
)


class Refusal(Exception):
    """A call that ends with a status other than OK. A fault of the server gets an id, if it has none."""

    def __init__(
        self,
        reason: pb.ErrorReason.ValueType,
        message: str,
        *,
        field: str = "",
        code: grpc.StatusCode | None = None,
        retry_after: float | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        if reason == pb.ERROR_REASON_INTERNAL and metadata is None:
            error_id = secrets.token_hex(4)
            message, metadata = f"{message}, {error_id}", {"error_id": error_id}
        super().__init__(message)
        self.code = code or CODES[reason]
        self.detail = pb.ErrorDetail(
            reason=reason, field=field, retryable=reason in RETRYABLE, metadata=metadata or {}
        )
        if retry_after is not None:
            self.detail.retry_after.CopyFrom(Duration(nanos=round(retry_after * 1e9)))

    @property
    def message(self) -> str:
        """One line."""
        return str(self)

    def status(self) -> pb.Status:
        """The failure as a message."""
        packed = Any()
        packed.Pack(self.detail)
        return pb.Status(code=self.code.value[0], message=self.message, details=[packed])

    def trailers(self) -> Metadata:
        """The failure as trailing metadata."""
        return ((DETAILS_KEY, self.status().SerializeToString()),)


def invalid(field: str, wrong: str, got: object, allowed: str) -> Refusal:
    """A field with a value that no server may accept."""
    message = f"{field}: {wrong}, got {ascii(got)[:64]}, allowed {allowed}"
    return Refusal(pb.ERROR_REASON_INVALID_REQUEST, message, field=field)
