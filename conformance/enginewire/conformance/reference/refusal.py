"""Why a call fails, and how that travels: one status, one encoding of details."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import DETAILS_KEY, Metadata
from enginewire.conformance.wire.foreign import google_rpc
from enginewire.v1.status_codes import STATUS_CODES

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
        self.code = code or STATUS_CODES[reason]
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
        details = [packed, *self.generic_details()]
        return pb.Status(code=self.code.value[0], message=self.message, details=details)

    def generic_details(self) -> Iterator[Any]:
        """The same for tools that do not know this contract."""
        reason, field = google_rpc.name_of(self.detail.reason), self.detail.field
        yield google_rpc.packed("ErrorInfo", reason=reason, domain=google_rpc.DOMAIN)
        if field:
            violations = [{"field": field, "description": self.message}]
            yield google_rpc.packed("BadRequest", field_violations=violations)
        if self.detail.HasField("retry_after"):
            wait = self.detail.retry_after
            yield google_rpc.packed("RetryInfo", retry_delay={"seconds": wait.seconds, "nanos": wait.nanos})

    def trailers(self) -> Metadata:
        """The failure as trailing metadata."""
        details = (DETAILS_KEY, self.status().SerializeToString())
        if not self.detail.HasField("retry_after"):
            return (details,)
        return (details, (google_rpc.PUSHBACK_KEY, str(self.detail.retry_after.ToMilliseconds())))


def invalid(field: str, wrong: str, got: object, allowed: str) -> Refusal:
    """A field with a value that no server may accept."""
    message = f"{field}: {wrong}, got {ascii(got)[:64]}, allowed {allowed}"
    return Refusal(pb.ERROR_REASON_INVALID_REQUEST, message, field=field)
