"""ERR-17: what is not advertised is refused, one negative check per capability of `features`."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.conformance.running.registry import CheckFunction, negative
from enginewire.conformance.session.context import REFUSALS, Context
from enginewire.conformance.session.features import FEATURES
from enginewire.conformance.session.fields import FLOATS
from enginewire.conformance.session.requests import PARTS, Value
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, Rule

UNSIGNED: Final = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)

USES: Final = FEATURES | {
    "prompt_embeds": {
        "prompt_embeds": pb.Tensor(data_type=pb.DATA_TYPE_FLOAT32, shape=[1, 1], data=struct.pack("<f", 1.0))
    },
    "multi_modal_part_types": {"multi_modal_data": [pb.MultiModalPart(part_type="image_url")]},
}
"""As in FEATURES, and what only some requests of an engine that has the capability may be like."""


def _refusal_of(capability: str) -> CheckFunction:
    async def is_refused(ctx: Context) -> None:
        for use in _uses(capability):
            await ctx.rejects(use, codes=REFUSALS)

    is_refused.__doc__ = f"A request that uses {capability}."
    return is_refused


def _uses(capability: str) -> Iterator[dict[str, Value]]:
    """The usual one, the same beside another stop condition, and the least and the most of each field.

    And what stands for a prompt in the place of one.
    """
    yield USES[capability]
    yield {**USES[capability], "stop_token_ids": [0]}
    if capability == "prompt_embeds":
        yield {**USES[capability], "token_ids": []}
    for rule in FIELD_RULES.values():
        is_plain = not rule.is_in_list and (rule.path == rule.field.name or rule.path.startswith(PARTS[1:]))
        if rule.capability == capability and is_plain:
            yield from ({rule.field.name: value} for value in _values(rule))


def _values(rule: Rule) -> tuple[Value, ...]:
    """What uses a field: zero, or on both sides of the value that changes nothing, each of two; and the ends
    of its range.
    """
    if rule.field.is_repeated or rule.field.message_type is not None:
        return ()
    match rule.field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return (True,) if rule.neutral is not None else (False, True)
        case FieldDescriptor.CPPTYPE_STRING:
            return (b"{}" if rule.json else "a text",)
    kind, step = (float, 0.5) if rule.field.cpp_type in FLOATS else (int, 1)
    beside = (0,) if rule.neutral is None else (rule.neutral + step, rule.neutral - step)
    ends = (rule.min, rule.max, rule.bound if rule.bound < UNBOUNDED else math.inf)
    least = 0 if rule.field.cpp_type in UNSIGNED else -math.inf
    values = [each for each in (*beside, *ends) if math.isfinite(each) and rule.holds(each) and each >= least]
    return tuple(dict.fromkeys(kind(each) for each in values if rule.asks(each)))


for _capability in USES:
    negative(_capability)(_refusal_of(_capability))
