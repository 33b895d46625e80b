"""Messages of any type as hypothesis draws them: a good one with a few fields set to values at their edges.

Built from the descriptors and the rules in them, so a new field or RPC is tried without a word here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from enginewire.v1 import rules_pb2

MAX_DEPTH = 6
MAX_CHANGES = 5
# A list this long is beyond every bound that is not a size in bytes; longer ones only take time.
LONGEST_LIST = 70_000
VOCABULARY = 258
CONTEXT = 256
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 2.0, 2.1, 1e30, 3.4e38, math.nan, math.inf, -math.inf)
TEXTS = (
    "",
    "x",
    "mocker",
    "nope",
    "../../etc/passwd",
    "/abs",
    "a\0b",
    "%2e%2e/",
    "x\ny\x1b[31m",
    "\u202e",
    "x" * 5000,
    "{}",
    '{"type": "object"}',
    '{"$ref": "#"}',
    "(a{1,900}){900}",
    "foo**",
    "(",
    "root ::= root",
    "é\ud7ff😀",
    "http://127.0.0.1:1/",
    "file:///etc/passwd",
    "NaN",
)
BYTES = (
    b"",
    b"{}",
    b"[",
    b"[" * 10_000,
    b"\xff",
    b'{"a": 1}',
    b'{"a": NaN}',
    b"\x80\x02c",
    bytes(4096),
    b"null",
    b"1",
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b"\x00\x00\xc0\x7f" * 64,
)

# Whatever UTF-8 can say. Hypothesis takes seconds to find that out by itself.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

# What no answer may say about the machine or the program behind it.
TOO_MUCH = re.compile(r"Traceback|<class '|\b0x[0-9a-f]{8,}|site-packages|/enginewire/\w+/|\.py\b|/tmp/ew-")


def tells_too_much(answer: str) -> bool:
    """It shows more of us than callers need."""
    return bool(TOO_MUCH.search(answer))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field that has a value of its own, and the fields that lead to it."""

    path: tuple[FieldDescriptor, ...]

    @property
    def field(self) -> FieldDescriptor:
        """The last one."""
        return self.path[-1]

    def __repr__(self) -> str:
        return ".".join(field.name for field in self.path)


def leaves(message: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Leaf]:
    """Every field below a message; of one that holds itself as deep as anybody would go."""
    for field in message.fields:
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            yield Leaf((*path, field))
        elif len(path) < MAX_DEPTH:
            yield Leaf((*path, field))  # an empty one
            yield from leaves(field.message_type, (*path, field))


def changed(base: Message) -> st.SearchStrategy[Message]:
    """`base` with up to MAX_CHANGES fields set to something."""
    all_leaves = list(leaves(base.DESCRIPTOR))
    if not all_leaves:
        return st.just(base)
    one = st.sampled_from(all_leaves).flatmap(lambda leaf: st.tuples(st.just(leaf), values(leaf.field)))
    return st.lists(one, max_size=MAX_CHANGES).map(lambda changes: _with(base, changes))


def raw(base: Message) -> st.SearchStrategy[bytes]:
    """Bytes that parse, nearly parse, or have nothing to do with it."""
    return st.one_of(
        st.binary(max_size=64), changed(base).flatmap(lambda message: spoiled(message.SerializeToString()))
    )


def spoiled(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes of it are others, or it ends early."""

    def spoil(how: tuple[list[tuple[int, int]], int]) -> bytes:
        places, end = how
        found = bytearray(data[:2000])
        for place, value in places:
            if found:
                found[place % len(found)] = value
        return bytes(found[: end % (len(found) + 1)]) if end else bytes(found)

    place = st.tuples(st.integers(0, 2000), st.integers(0, 255))
    return st.tuples(st.lists(place, max_size=4), st.integers(0, 2000)).map(spoil)


def values(field: FieldDescriptor) -> st.SearchStrategy[object]:
    """What such a field may be set to. A list gets a few, or one again and again."""
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            inner = st.none() if value.message_type else _scalars(value)
            return st.dictionaries(_scalars(key), inner, max_size=2)
        return st.just(None)
    if not field.is_repeated:
        return _scalars(field)
    few = st.lists(_scalars(field), max_size=3)
    many = st.tuples(_scalars(field), st.sampled_from(_lengths(field)))
    return st.one_of(few, many.map(lambda pair: _repeated(*pair)))


def _repeated(value: object, count: int) -> list[object]:
    if isinstance(value, str | bytes) and len(value) > 100:
        count = min(count, 100)
    return [value] * count


def _lengths(field: FieldDescriptor) -> Sequence[int]:
    bound = min(_rule(field).bound or 1024, LONGEST_LIST)
    return (1, bound, bound + 1, CONTEXT, CONTEXT + 1)


def _rule(field: FieldDescriptor) -> rules_pb2.FieldRule:
    return field.GetOptions().Extensions[rules_pb2.rule]


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[object]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            rule = _rule(field)
            edges = [edge for edge in (rule.min, rule.max) if math.isfinite(edge)]
            near = [math.nextafter(edge, to) for edge in edges for to in (-math.inf, math.inf)]
            return st.one_of(st.sampled_from([*FLOATS, *edges, *near]), st.floats(width=32))
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.sampled_from([*(value.number for value in field.enum_type.values), 99, -1])
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return st.one_of(st.sampled_from(BYTES), st.binary(max_size=64))
        case FieldDescriptor.CPPTYPE_STRING:
            return st.one_of(st.sampled_from(TEXTS), ANY_TEXT)
        case FieldDescriptor.CPPTYPE_INT32:
            return _integers(field, -(2**31), 2**31 - 1)
        case FieldDescriptor.CPPTYPE_INT64:
            return _integers(field, -(2**63), 2**63 - 1)
        case FieldDescriptor.CPPTYPE_UINT32:
            return _integers(field, 0, 2**32 - 1)
        case _:
            return _integers(field, 0, 2**64 - 1)


def _integers(field: FieldDescriptor, least: int, most: int) -> st.SearchStrategy[int]:
    rule = _rule(field)
    near = [VOCABULARY, CONTEXT, rule.bound, *(int(end) for end in (rule.min, rule.max) if abs(end) < 2**63)]
    edges = {least, most, 0, 1, 2, 5, *(value + by for value in near for by in (-1, 0, 1))}
    return st.one_of(
        st.sampled_from(sorted(edge for edge in edges if least <= edge <= most)), st.integers(least, most)
    )


def _with(base: Message, changes: Sequence[tuple[Leaf, object]]) -> Message:
    message = type(base)()
    message.CopyFrom(base)
    for leaf, value in changes:
        _put(message, leaf.path, value)
    return message


def _put(owner: Message, path: Sequence[FieldDescriptor], value: object) -> None:
    *parents, field = path
    for parent in parents:
        owner = _below(owner, parent)
    if field.message_type is not None and not isinstance(value, dict):
        inner = _below(owner, field)
        inner.SetInParent()
    elif isinstance(value, dict):
        for key, inner in value.items():
            if inner is None:
                getattr(owner, field.name)[key].SetInParent()
            else:
                getattr(owner, field.name)[key] = inner
    elif field.is_repeated:
        owner.ClearField(field.name)
        getattr(owner, field.name).extend(value)
    else:
        setattr(owner, field.name, value)


def _below(owner: Message, field: FieldDescriptor) -> Message:
    """The message in a field: of a list the last one, or a new one."""
    found = getattr(owner, field.name)
    if not field.is_repeated:
        return found
    return found[-1] if len(found) else found.add()
