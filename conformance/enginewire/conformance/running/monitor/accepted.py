"""What may not be accepted: requests that break a rule of one field or of two, whatever else they ask for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence, Sized
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Answer
from enginewire.conformance.running.monitor.failures import EARLY
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.session.sizes import names_of
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

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
RANKS: Final = "routing.dp_rank"
"""Which of them are served says more than a capability."""

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


@of_answers("ERR-27")
def ids_are_names(answer: Answer) -> None:
    """Short ones, of few characters."""
    name, message = answer.request.request_id, "a request_id that is none was accepted"
    is_name = REQUEST_ID.fullmatch(name) or not _is_accepted(answer)
    expect(is_name, message, expected=REQUEST_ID.pattern, seen=name[:160])


@of_answers("ERR-06")
def models_are_served(answer: Answer) -> None:
    """By one of their names; an adapter is a model too."""
    config, model = answer.config, answer.body.model
    if _is_accepted(answer) and answer.is_known and not config.capabilities.lora:
        names = {"", *names_of(config)}
        expect(model in names, "a model that is not served was accepted", expected=sorted(names), seen=model)


@of_answers("LIM-04")
def some_tokens_are_asked_for(answer: Answer) -> None:
    """0 is not 'unlimited'."""
    conditions = answer.body.stop_conditions
    none = conditions.HasField("max_tokens") and not conditions.max_tokens
    expect(not (none and _is_accepted(answer)), "max_tokens of 0 was accepted")


@of_answers("LIM-07", needs=("LIM-04",))
def minimum_and_maximum_agree(answer: Answer) -> None:
    """The one within the other."""
    conditions = answer.body.stop_conditions
    least, most = conditions.min_tokens, conditions.max_tokens
    if _is_accepted(answer) and conditions.HasField("max_tokens"):
        expect(least <= most, "min_tokens above max_tokens was accepted", expected=most, seen=least)


@of_answers("ERR-04")
def prompts_leave_room(answer: Answer) -> None:
    """For a token."""
    prompt, window = answer.prompt_tokens, answer.config.context_length
    if prompt is not None and window and _is_accepted(answer):
        message = "a prompt of context_length tokens or more was accepted"
        expect(prompt < window, message, expected=f"below {window}", seen=prompt)


@of_answers("LIM-12", needs=("ERR-04", "LIM-07"))
def prompts_leave_room_for_the_minimum(answer: Answer) -> None:
    """However much more is asked for."""
    prompt, window = answer.prompt_tokens, answer.config.context_length
    least = answer.body.stop_conditions.min_tokens
    if prompt is not None and window and _is_accepted(answer):
        message = "a prompt that leaves no room for min_tokens was accepted"
        expect(prompt + least <= window, message, expected=window - prompt, seen=least)


@of_answers("LIM-10")
def lists_are_bounded(answer: Answer) -> None:
    """Those that an engine reads."""
    for rule, value in _set_fields(answer.body, "") if answer.is_known and _is_accepted(answer) else ():
        if rule.field.is_repeated and rule.field_class == pb.FIELD_CLASS_ENGINE:
            assert isinstance(value, Sized)
            most = rule.most(answer.config.limits)
            message = f"{rule.path} with more entries than there may be was accepted"
            expect(len(value) <= most, message, expected=most, seen=len(value))


@of_answers("ERR-17")
def only_what_is_offered_is_used(answer: Answer) -> None:
    """By each field that belongs to a capability."""
    if not (answer.is_known and _is_accepted(answer)):
        return
    for rule, value in _set_fields(answer.body, ""):
        is_read = rule.capability and rule.path != RANKS and rule.field_class != pb.FIELD_CLASS_OPAQUE
        if is_read and rule.asks(value) and not _is_as_many_as_choices(answer, rule, value):
            offered = getattr(answer.config.capabilities, rule.capability)
            message = f"{rule.path} was accepted, and {rule.capability} is not advertised"
            expect(offered, message, expected="a refusal")


@of_answers("RES-09", needs=("SEQ-06",))
def resumed_choices_are_named_once(answer: Answer) -> None:
    """Each of those that are asked for, not all of them finished, none with more tokens than it may have."""
    named = [choice.index for choice in answer.body.resume.choices]
    if not (named and _is_accepted(answer)):
        return
    message = "a resume that names a choice twice, or one that is not asked for, was accepted"
    expect(len(set(named)) == len(named) and max(named) < answer.count, message, seen=named)
    finished = sum(choice.finished for choice in answer.body.resume.choices)
    expect(finished < answer.count, "a resume whose choices are all finished was accepted", seen=named)
    most = answer.body.stop_conditions.max_tokens or math.inf
    counts = [len(choice.generated_token_ids) for choice in answer.body.resume.choices]
    expect(max(counts) <= most, "a resume with more than max_tokens tokens was accepted", seen=max(counts))


def _is_as_many_as_choices(answer: Answer, rule: Rule, value: object) -> bool:
    """Candidates of which none is left out."""
    return rule.path == "sampling_options.best_of" and value == answer.count


def _set_fields(message: Message, prefix: str) -> Iterator[tuple[Rule, object]]:
    """All fields of a request that are set, outside of lists."""
    for field, value in message.ListFields():
        rule = FIELD_RULES[f"{prefix}{field.name}"]
        yield rule, value
        if field.message_type is not None and not field.is_repeated:
            yield from _set_fields(value, f"{rule.path}.")


def _is_within_its_limit(answer: Answer, requirement: str) -> None:
    for rule, value in _fields(answer) if answer.is_known else ():
        if BOUNDS.get(rule.path) == requirement and isinstance(value, int):
            most = rule.most(answer.config.limits)
            within = value <= most and rule.holds(value)
            expect(within, f"{rule.path} beyond its limit was accepted", expected=most, seen=value)


def _is_accepted(answer: Answer) -> bool:
    # Not what was accepted and then refused: that is a matter of ERR-11 and MUX-03.
    reason = answer.detail.reason if answer.detail else pb.ERROR_REASON_UNSPECIFIED
    is_refused = reason in EARLY or reason == pb.ERROR_REASON_INVALID_REQUEST
    return answer.is_ok or (bool(answer.outputs) and not is_refused)


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
