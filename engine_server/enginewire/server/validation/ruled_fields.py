"""The fields of a PreprocessedRequest that have a rule of the contract, sorted by what there is to check.

Which rules there are is read once; of a request only the fields that are set are looked at. Those inside of
lists are left out. Refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES, Rule

DECIDED_BY_OTHERS: Final = frozenset({"sampling_options.best_of", "routing.dp_rank"})
"""Gated, but not by the own value alone: one needs nothing up to `n`, the other is a rank or is none."""

Fields = list[tuple[Rule, Any]]


@dataclass(frozen=True, slots=True)
class RuledFields:
    """Rules and values, one list for each kind of check."""

    ranged: Fields = field(default_factory=list)
    gated: Fields = field(default_factory=list)
    limited: Fields = field(default_factory=list)
    token_ids: Fields = field(default_factory=list)
    json: Fields = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ruled:
    """The fields of one message by number: the rule, the lists it goes into, and the message below."""

    fields: dict[int, tuple[Rule, tuple[str, ...], _Ruled | None]]
    never_unset: tuple[Rule, ...]
    """Numbers whose range does not have the 0 that they are when nobody sets them."""


def ruled_fields(request: pb.PreprocessedRequest) -> RuledFields:
    """Those that are set, in the order of the contract, and those that cannot be unset."""
    found = RuledFields()
    _collect(request, _REQUEST, found)
    return found


def _collect(message: Message, ruled: _Ruled, found: RuledFields) -> None:
    for descriptor, value in message.ListFields():
        rule, kinds, below = ruled.fields[descriptor.number]
        for kind in kinds:
            getattr(found, kind).append((rule, value))
        if below is not None:
            _collect(value, below, found)
    for rule in ruled.never_unset:
        if not getattr(message, rule.field.name):
            found.ranged.append((rule, 0))


def _ruled(message: Descriptor, prefix: str = "") -> _Ruled:
    rules = [FIELD_RULES[prefix + descriptor.name] for descriptor in message.fields]
    never_unset = (rule for rule in rules if not rule.field.has_presence and not rule.field.is_repeated)
    return _Ruled(
        {rule.field.number: (rule, tuple(_kinds(rule)), _below(rule)) for rule in rules},
        tuple(rule for rule in never_unset if rule.has_range and not rule.holds(0)),
    )


def _below(rule: Rule) -> _Ruled | None:
    inner = rule.field.message_type
    return None if inner is None or rule.field.is_repeated else _ruled(inner, f"{rule.path}.")


def _kinds(rule: Rule) -> Iterator[str]:
    if rule.has_range:
        yield "ranged"
    if rule.capability and rule.path not in DECIDED_BY_OTHERS:
        yield "gated"
    if rule.limit or rule.token_count:
        yield "limited"
    if rule.token_ids:
        yield "token_ids"
    # Guides are JSON in texts, and have checks of their own.
    if rule.json and rule.field.type == FieldDescriptor.TYPE_BYTES:
        yield "json"


_REQUEST: Final = _ruled(pb.PreprocessedRequest.DESCRIPTOR)
