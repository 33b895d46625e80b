"""The messages of google.rpc that generic tools read beside an ErrorDetail, as far as the kit reads them.

Built here, in a pool of their own: the kit needs no package that has them, and gets in the way of none.
"""

from __future__ import annotations

from typing import Any as AnyMessage, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message

from enginewire import v1 as pb

DOMAIN: Final = "enginewire"
PREFIX: Final = "type.googleapis.com/google.rpc."
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"

_Field = descriptor_pb2.FieldDescriptorProto
_FIELDS: Final[dict[str, tuple[tuple[str, int, _Field.Type.ValueType | str], ...]]] = {
    "ErrorInfo": (("reason", 1, _Field.TYPE_STRING), ("domain", 2, _Field.TYPE_STRING)),
    "BadRequest": (("field_violations", 1, "FieldViolation"),),
    "FieldViolation": (("field", 1, _Field.TYPE_STRING), ("description", 2, _Field.TYPE_STRING)),
    "RetryInfo": (("retry_delay", 1, "Delay"),),
    "Delay": (("seconds", 1, _Field.TYPE_INT64), ("nanos", 2, _Field.TYPE_INT32)),
}
"""As they are encoded: names of nested messages are the kit's own."""


def _classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="kit.proto", package="google.rpc", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label = _Field.LABEL_REPEATED if field == "field_violations" else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".google.rpc.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{name}"))
        for name in _FIELDS
    }


CLASSES: Final = _classes()


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
