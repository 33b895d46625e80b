"""The fields of a request by descriptor, so that a field added to the contract is checked from that day on.

A path leads through repeated messages by the first entry, or by a later one. Builds and encodes; sends
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.session.requests import Value

FLOATS: Final = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
ENUMS: Final = (FieldDescriptor.CPPTYPE_ENUM,)

UNKNOWN_NUMBER: Final = 19_999 + 10_000
"""A field number the contract does not use; 19000 to 19999 belong to protobuf itself."""

_LENGTH_DELIMITED: Final = 2


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A field somewhere below PreprocessedRequest, by the fields that lead to it."""

    steps: tuple[FieldDescriptor, ...]

    @property
    def name(self) -> str:
        """As in an ErrorDetail, without indexes: `sampling_options.logit_bias.bias`."""
        return ".".join(step.name for step in self.steps)

    @property
    def is_in_list(self) -> bool:
        """Whether a repeated message leads to it."""
        return any(step.is_repeated for step in self.steps[:-1])

    def put(self, request: pb.GenerateRequest, value: Value, place: int = 0) -> None:
        """Set the field, in this entry of lists on the way, and make what leads to it; None makes only that.

        Entries that are made differ by their numbers, such as the token of a bias or the index of a choice.
        """
        owner: Message = request.request
        for step in self.steps[:-1]:
            owner = _inside(owner, step, place)
        last = self.steps[-1]
        if value is None:
            return
        if last.is_repeated:
            getattr(owner, last.name).append(value)
        else:
            setattr(owner, last.name, value)

    def encoded(self, payload: bytes) -> bytes:
        """A serialized GenerateRequest with nothing but these bytes in this field; it can be appended."""
        for step in reversed(self.steps):
            payload = length_delimited(step.number, payload)
        return length_delimited(pb.GenerateRequest.REQUEST_FIELD_NUMBER, payload)


def fields_of(types: Collection[int]) -> list[FieldPath]:
    """All fields of these C++ types below PreprocessedRequest."""
    return list(_walk(pb.PreprocessedRequest.DESCRIPTOR, (), types))


def text_fields() -> list[FieldPath]:
    """All string fields below PreprocessedRequest."""
    strings = fields_of((FieldDescriptor.CPPTYPE_STRING,))
    return [path for path in strings if path.steps[-1].type == FieldDescriptor.TYPE_STRING]


def without_indexes(path: str) -> str:
    """`sampling_options.logit_bias[0].bias` as `sampling_options.logit_bias.bias`."""
    return re.sub(r"\[\d+\]", "", path)


def length_delimited(number: int, payload: bytes) -> bytes:
    """A field of bytes, text or a message on the wire."""
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A number on the wire."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def unknown_fields() -> bytes:
    """One field of each wire type that no revision of the contract has."""
    tag = UNKNOWN_NUMBER << 3
    numbers = varint(tag) + varint(7) + varint(tag | 1) + bytes(8) + varint(tag | 5) + bytes(4)
    return numbers + length_delimited(UNKNOWN_NUMBER, b"from the future")


def _walk(
    message: Descriptor, steps: tuple[FieldDescriptor, ...], types: Collection[int]
) -> Iterator[FieldPath]:
    for field in message.fields:
        path = (*steps, field)
        if field.cpp_type in types:
            yield FieldPath(path)
        if field.message_type:
            yield from _walk(field.message_type, path, types)


def _inside(owner: Message, step: FieldDescriptor, place: int) -> Message:
    value = getattr(owner, step.name)
    if not step.is_repeated:
        value.SetInParent()
        return cast(Message, value)
    for number in range(len(value), place + 1):
        _name(value.add(), number)
    return cast(Message, value[place])


def _name(entry: Message, number: int) -> None:
    """Give an entry of a list a number of its own, where it has one."""
    for field in entry.DESCRIPTOR.fields if number else ():
        if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 and not field.is_repeated:
            setattr(entry, field.name, number)
