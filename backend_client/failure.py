"""Why a request failed, as the backend sees it: one exception for every cause.

Reads the contract's Status, whether it came as an event, as trailers or not at all. Knows nothing
about streams or text.
"""

from __future__ import annotations

import grpc

from enginewire import v1 as pb

DETAILS_KEY = "grpc-status-details-bin"

# What a bare code means when a server sent no details.
REASON_OF_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: pb.ERROR_REASON_INVALID_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: pb.ERROR_REASON_INVALID_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: pb.ERROR_REASON_UNSUPPORTED,
    grpc.StatusCode.NOT_FOUND: pb.ERROR_REASON_MODEL_NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: pb.ERROR_REASON_DUPLICATE_ID,
    grpc.StatusCode.RESOURCE_EXHAUSTED: pb.ERROR_REASON_QUEUE_FULL,
    grpc.StatusCode.UNAVAILABLE: pb.ERROR_REASON_ENGINE_DEAD,
    grpc.StatusCode.DEADLINE_EXCEEDED: pb.ERROR_REASON_DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED: pb.ERROR_REASON_CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED: pb.ERROR_REASON_AUTH,
    grpc.StatusCode.PERMISSION_DENIED: pb.ERROR_REASON_AUTH,
}
CODE_NUMBERS = {code.value[0]: code for code in grpc.StatusCode}


class RequestFailed(Exception):
    """A request failed; what was delivered before stays valid. `status` is what the wire said."""

    def __init__(self, status: pb.Status, detail: pb.ErrorDetail) -> None:
        super().__init__(status.message)
        self.status = status
        self.detail = detail

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        return CODE_NUMBERS.get(self.status.code, grpc.StatusCode.UNKNOWN)

    @property
    def reason(self) -> pb.ErrorReason.ValueType:
        """The cause."""
        return self.detail.reason

    @property
    def retryable(self) -> bool:
        """The same request may succeed elsewhere or later."""
        return self.detail.retryable


def failed(
    code: grpc.StatusCode,
    reason: pb.ErrorReason.ValueType,
    message: str,
    *,
    retryable: bool = False,
    field: str = "",
) -> RequestFailed:
    """A failure that the backend itself found."""
    detail = pb.ErrorDetail(reason=reason, field=field, retryable=retryable)
    status = pb.Status(code=code.value[0], message=message)
    status.details.add().Pack(detail)
    return RequestFailed(status, detail)


def from_status(status: pb.Status) -> RequestFailed:
    """The failure that a Status of the wire describes."""
    detail = pb.ErrorDetail()
    for packed in status.details:
        if packed.Unpack(detail):
            return RequestFailed(status, detail)
    code = CODE_NUMBERS.get(status.code, grpc.StatusCode.UNKNOWN)
    return failed(
        code,
        REASON_OF_CODE.get(code, pb.ERROR_REASON_INTERNAL),
        status.message,
        retryable=code is grpc.StatusCode.UNAVAILABLE,
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> RequestFailed:
    """The failure that ended a call. Causes are told apart by code and details, never by text."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return from_status(pb.Status.FromString(value))
    return from_status(pb.Status(code=error.code().value[0], message=error.details() or ""))
