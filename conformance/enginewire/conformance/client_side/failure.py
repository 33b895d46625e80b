"""Why a request of the reference backend failed, as one exception. Knows nothing about requests."""

from __future__ import annotations

from contextlib import suppress

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import DETAILS_KEY


class Failed(Exception):
    """The request failed."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: pb.ErrorReason.ValueType,
        message: str,
        *,
        retryable: bool = False,
        field: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.retryable = code, retryable
        self.status = pb.Status(code=code.value[0], message=message)
        self.status.details.add().Pack(pb.ErrorDetail(reason=reason, field=field, retryable=retryable))

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> Failed:
        """What ended a call, with the details of whoever ended it."""
        failure = cls(error.code(), pb.ERROR_REASON_INTERNAL, error.details() or "")
        for key, value in error.trailing_metadata() or ():
            if key == DETAILS_KEY and isinstance(value, bytes):
                failure.status = pb.Status.FromString(value)
        detail = pb.ErrorDetail()
        with suppress(IndexError):
            failure.status.details[0].Unpack(detail)
        failure.retryable = detail.retryable
        return failure

    @property
    def retry_after(self) -> float:
        """Seconds that the engine wants to be left alone."""
        detail = pb.ErrorDetail()
        for packed in self.status.details:
            packed.Unpack(detail)
        return detail.retry_after.ToMilliseconds() / 1e3


def violation(what: str) -> Failed:
    """The engine broke the contract."""
    return Failed(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_PROTOCOL_VIOLATION, f"protocol violation: {what}")
