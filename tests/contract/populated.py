"""Messages with every field set to a value of its own, built from the descriptors alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginewire.v1 import revision

MAX_DEPTH = 8


def contract_messages() -> list[Descriptor]:
    """Every message of the contract, nested ones included, map entries not."""
    top = [message for file in revision.FILES for message in file.message_types_by_name.values()]
    return sorted((m for message in top for m in _with_nested(message)), key=lambda m: m.full_name)


def populated(descriptor: Descriptor) -> Message:
    """An instance with every field set. Of a oneof the last member stays."""
    return _populated(descriptor, count(1), MAX_DEPTH)


def _with_nested(message: Descriptor) -> Iterator[Descriptor]:
    if not message.GetOptions().map_entry:
        yield message
    for nested in message.nested_types:
        yield from _with_nested(nested)


def _populated(descriptor: Descriptor, numbers: Iterator[int], depth: int) -> Message:
    message = message_factory.GetMessageClass(descriptor)()
    assert depth, f"{descriptor.full_name} is nested in itself"
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[f"key{next(numbers)}"] = f"value{next(numbers)}"
        elif field.message_type is not None:
            _populate_message(message, field, numbers, depth - 1)
        elif field.is_repeated:
            getattr(message, field.name).extend([_scalar(field, next(numbers)) for _ in range(2)])
        else:
            setattr(message, field.name, _scalar(field, next(numbers)))
    return message


def _populate_message(message: Message, field: FieldDescriptor, numbers: Iterator[int], depth: int) -> None:
    for _ in range(2 if field.is_repeated else 1):
        inner = _populated(field.message_type, numbers, depth)
        if field.is_repeated:
            getattr(message, field.name).append(inner)
        else:
            getattr(message, field.name).CopyFrom(inner)


def _scalar(field: FieldDescriptor, number: int) -> bool | int | float | str | bytes:
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return number + 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        values = field.enum_type.values
        return values[1 + number % (len(values) - 1)].number
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"\x00\xff%d" % number
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"é{number}"
    return number
