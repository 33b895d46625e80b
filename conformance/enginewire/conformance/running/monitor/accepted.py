"""What may not be accepted: requests with a field outside of its rule, whatever else they ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import expect
from enginewire.field_rules import FIELD_RULES, Rule

OPTIONS: Final = ("sampling_options.", "output_options.")
FLOATS: Final = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)

NUMBERS: Final = (
    *FLOATS,
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)

COUNTS: Final = ("sampling_options.n", "sampling_options.best_of")
"""Their ranges are those of SEQ-06 and ERR-17."""

BOUNDS: Final = {"sampling_options.n": "SEQ-06", "output_options.logprobs": "LOG-09"}
"""What is limited, and the requirement that says so."""


@of_answers("ERR-01")
def prompts_are_needed(answer: Answer) -> None:
    """Token ids, unless something else stands for them."""
    if _is_accepted(answer) and not answer.body.prompt_embeds.ByteSize():
        expect(
            answer.prompt_tokens is None or answer.body.token_ids, "a request without a prompt was accepted"
        )


@of_answers("ERR-02")
def ids_are_checked(answer: Answer) -> None:
    """In the prompt and in every list."""
    most = answer.config.vocab_size
    for rule, value in _fields(answer) if answer.is_known else ():
        if rule.token_ids:
            largest = max(value) if isinstance(value, Sequence) else value
            message = f"{rule.path} with an id beyond the vocabulary was accepted"
            expect(largest < most, message, expected=f"below {most}", seen=largest)


@of_answers("ERR-03")
def numbers_are_checked(answer: Answer) -> None:
    """NaN and infinities."""
    for rule, value in _fields(answer):
        if rule.field.cpp_type in FLOATS:
            values = value if isinstance(value, Sequence) else [value]
            expect(all(map(math.isfinite, values)), f"{rule.path} was accepted", seen=list(values)[:16])


@of_answers("ERR-05", needs=("ERR-03",))
def ranges_are_checked(answer: Answer) -> None:
    """Of sampling and output options."""
    for rule, value in _fields(answer):
        is_judged = rule.path.startswith(OPTIONS) and rule.path not in COUNTS
        if is_judged and rule.has_range and isinstance(value, int | float):
            message = f"{rule.path} outside of its range was accepted"
            expect(rule.holds(value), message, expected=rule.range, seen=value)


@of_answers("SEQ-06")
def the_number_of_choices_is_checked(answer: Answer) -> None:
    """Against the limit."""
    _is_within_its_limit(answer, "SEQ-06")


@of_answers("LOG-09")
def the_number_of_alternatives_is_checked(answer: Answer) -> None:
    """Against the limit."""
    _is_within_its_limit(answer, "LOG-09")


def _is_within_its_limit(answer: Answer, requirement: str) -> None:
    for rule, value in _fields(answer) if answer.is_known else ():
        if BOUNDS.get(rule.path) == requirement and isinstance(value, int):
            most = rule.most(answer.config.limits)
            within = value <= most and rule.holds(value)
            expect(within, f"{rule.path} beyond its limit was accepted", expected=most, seen=value)


def _is_accepted(answer: Answer) -> bool:
    # Not what was accepted and then refused: that is a matter of MUX-03.
    return answer.is_ok or bool(answer.outputs)


def _fields(answer: Answer) -> Iterator[tuple[Rule, Sequence[float] | float]]:
    """The numbers of an accepted request that an engine reads, with the rules of their fields."""
    return _below(answer.body, "") if _is_accepted(answer) else iter(())


def _below(message: Message, prefix: str) -> Iterator[tuple[Rule, Sequence[float] | float]]:
    for field, value in message.ListFields():
        rule = FIELD_RULES[f"{prefix}{field.name}"]
        if field.message_type is not None:
            for entry in value if field.is_repeated else [value]:
                yield from _below(entry, f"{rule.path}.")
        elif rule.field_class == pb.FIELD_CLASS_ENGINE and field.cpp_type in NUMBERS:
            yield rule, value
