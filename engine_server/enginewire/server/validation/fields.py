"""What holds for the fields of every message, whatever they mean.

Holds `check_numbers`, which looks at every number there is, and `invalid`, which words what is wrong.
"""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest

MAX_ENTRIES = 16_384
"""Sub-messages with numbers that one request may have; looking at each of them costs a microsecond."""

FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def invalid(path: str, reason: str, got: object, allowed: str) -> InvalidRequest:
    """The failure in the one wording all of them share. `got` is shown escaped and cut."""
    return InvalidRequest(f"{path}: {reason}, got {shown(got)}, allowed {allowed}", field=path)


def shown(value: object) -> str:
    """`value` as at most 64 printable ASCII characters."""
    if isinstance(value, float):
        return repr(_as_written(value))
    # Cut before escaping too: a caller may send megabytes.
    return ascii(value[:64] if isinstance(value, str | bytes) else value)[:64]


def _as_written(value: float) -> float:
    """The shortest number that a field of 32 bits makes the same of: 0.3 for 0.30000001192092896."""
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((number for number in shorter if _in_32_bits(number) == value), value)


def _in_32_bits(number: float) -> float:
    try:
        [rounded] = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return number
    return float(rounded)


class Sized(Protocol):
    """A repeated field, as far as counting goes."""

    def __len__(self) -> int: ...


def check_numbers(request: pb.PreprocessedRequest) -> None:
    """Raise InvalidRequest for a float that is not finite and for an enum value that does not exist."""
    pending: list[tuple[str, Message]] = [("", request)]
    seen = 0
    while pending:
        path, message = pending.pop()
        seen += 1
        if seen > MAX_ENTRIES:
            raise invalid(path, "too many entries", f"more than {MAX_ENTRIES}", f"0..{MAX_ENTRIES}")
        numeric = _numeric_fields(message.DESCRIPTOR)
        for field, value in message.ListFields():
            if field.number not in numeric:
                continue
            here = f"{path}.{field.name}" if path else field.name
            if field.message_type is None:
                _check_number(here, field, value)
            elif field.is_repeated:
                pending += ((f"{here}[{i}]", entry) for i, entry in enumerate(value[: MAX_ENTRIES + 1]))
            else:
                pending.append((here, value))


def _check_number(path: str, field: FieldDescriptor, value: float) -> None:
    if field.enum_type is None:
        if not math.isfinite(value):
            raise invalid(path, "must be finite", value, "finite numbers")
    elif value not in field.enum_type.values_by_number:
        raise invalid(path, "no such value", value, ", ".join(field.enum_type.values_by_name))


@cache
def _numeric_fields(descriptor: Descriptor) -> frozenset[int]:
    """Numbers of the fields that are a float or an enum, or that lead to one."""
    return frozenset(field.number for field in descriptor.fields if _is_numeric(field))


def _is_numeric(field: FieldDescriptor) -> bool:
    if field.message_type is not None:
        return bool(_numeric_fields(field.message_type))
    return field.cpp_type in FLOATS or field.enum_type is not None
