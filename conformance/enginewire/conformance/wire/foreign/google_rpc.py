"""The messages of google.rpc that generic tools read beside an ErrorDetail, as far as the kit reads them.

Built here, in a pool of their own: the kit needs no package that has them, and gets in the way of none.
"""

from __future__ import annotations

from typing import Any as AnyMessage, Final

from google.protobuf.any_pb2 import Any

from enginewire import v1 as pb
from enginewire.conformance.wire.foreign.classes import Field, Fields, classes

DOMAIN: Final = "enginewire"
PREFIX: Final = "type.googleapis.com/google.rpc."
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"

_FIELDS: Final[dict[str, Fields]] = {
    "ErrorInfo": (("reason", 1, Field.TYPE_STRING), ("domain", 2, Field.TYPE_STRING)),
    "BadRequest": (("field_violations", 1, "FieldViolation"),),
    "FieldViolation": (("field", 1, Field.TYPE_STRING), ("description", 2, Field.TYPE_STRING)),
    "RetryInfo": (("retry_delay", 1, "Delay"),),
    "Delay": (("seconds", 1, Field.TYPE_INT64), ("nanos", 2, Field.TYPE_INT32)),
}
"""As they are encoded: names of nested messages are the kit's own."""


CLASSES: Final = classes("google.rpc", _FIELDS, repeated={"field_violations"})


def unpacked(status: pb.Status, name: str) -> AnyMessage | None:
    """The first detail of that name, such as `ErrorInfo`; None without one. Raises DecodeError."""
    for packed in status.details:
        if packed.type_url == PREFIX + name:
            return CLASSES[name].FromString(packed.value)
    return None


def packed(name: str, **fields: AnyMessage) -> Any:
    """A detail of that name."""
    return Any(type_url=PREFIX + name, value=CLASSES[name](**fields).SerializeToString())


def name_of(reason: pb.ErrorReason.ValueType) -> str:
    """The reason as an ErrorInfo has it."""
    return pb.ErrorReason.Name(reason).removeprefix("ERROR_REASON_")
