"""The rules for fields of requests, read once from their options in the contract (`v1/rules.proto`).

`FIELD_RULES` has those of `PreprocessedRequest` by path, such as `sampling_options.top_p`; `rules_of` reads
another message. Knows nothing about a particular engine, and refuses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from enginewire.v1 import discovery_service_pb2, request_pb2, rules_pb2

UNBOUNDED = 2**64
"""Beyond every number and every count that a message can have."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed in one field. The attributes are those of the message `FieldRule`."""

    path: str
    field: FieldDescriptor
    field_class: rules_pb2.FieldClass.ValueType
    """Its own, or that of the message it is in."""
    is_in_list: bool
    """It is below a repeated message: the path stands for the field in each entry."""
    capability: str = ""
    neutral: float | None = None
    min: float = -math.inf
    above_min: bool = False
    max: float = math.inf
    bound: int = UNBOUNDED
    limit: str = ""
    token_ids: bool = False
    token_count: bool = False
    max_entry_bytes: int = UNBOUNDED
    json: rules_pb2.JsonKind.ValueType = rules_pb2.JSON_KIND_UNSPECIFIED

    @property
    def has_range(self) -> bool:
        """True when `holds` can be False."""
        return math.isfinite(self.min) or math.isfinite(self.max)

    @property
    def range(self) -> str:
        """The range in words: `(0, 1]`."""
        end = f"{self.max:g}]" if math.isfinite(self.max) else "inf)"
        return f"{'(' if self.above_min else '['}{self.min:g}, {end}"

    def holds(self, value: float) -> bool:
        """True when a number is in the range."""
        return self.min <= value <= self.max and not (self.above_min and value == self.min)

    def most(self, limits: discovery_service_pb2.Limits) -> int:
        """The largest number, or count of entries: the one in an engine's `limits`, else the contract's."""
        is_named = self.limit and limits.HasField(self.limit)  # type: ignore[arg-type]  # the name of a field
        return getattr(limits, self.limit) if is_named else self.bound

    def asks(self, value: object) -> bool:
        """True unless `value` is the one that asks for nothing."""
        return self.neutral is None or self.neutral != (len(value) if isinstance(value, str) else value)


def rules_of(message: Descriptor) -> Mapping[str, Rule]:
    """Path → rule of every field below `message`, in the order of the contract."""
    rules = _below(message, "", rules_pb2.FIELD_CLASS_UNSPECIFIED, is_in_list=False)
    return MappingProxyType({rule.path: rule for rule in rules})


def _below(
    message: Descriptor, prefix: str, inherited: rules_pb2.FieldClass.ValueType, *, is_in_list: bool
) -> Iterator[Rule]:
    for field in message.fields:
        option = field.GetOptions().Extensions[rules_pb2.rule]
        given = {part.name: value for part, value in option.ListFields()}
        field_class = given.pop("field_class", inherited)
        path = prefix + field.name
        yield Rule(path, field, field_class, is_in_list, **given)
        if field.message_type is not None:
            in_list = is_in_list or field.is_repeated
            yield from _below(field.message_type, f"{path}.", field_class, is_in_list=in_list)


FIELD_RULES: Mapping[str, Rule] = rules_of(request_pb2.PreprocessedRequest.DESCRIPTOR)
