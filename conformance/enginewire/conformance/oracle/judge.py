"""Compares an answer with what had to come. What is wrong first counts: the rest may follow from it.

Where an engine rounded otherwise than in the greedy run, its own tokens say when it had to end. Which tokens
come is judged only where the engine says that nothing but the request decides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Answer
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.oracle.predict import Ending, caller_ids, certain, ending, system_ids
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.wire.stream import Choice, reason_name

ENDED: Final = (pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP)


@dataclass(frozen=True, slots=True)
class Fault:
    """`rule`: what it breaks in a plain request that is alone."""

    rule: str
    message: str
    expected: object
    seen: object
    of_ending: bool = False
    """It is about when and how a choice ended."""
    of_ended: bool = False
    """It is about the end of a choice that had all of its tokens already."""
    of_others: bool = False
    """It ended by an id that its own request does not have."""


def judge(case: Case, answer: Answer, run: Greedy, offer: Offer) -> Fault | None:
    """The first fault of an answer; None for a right one, and for one that was refused for want of room."""
    if answer.is_busy and case.together:
        return None
    return next(_faults(case, answer, run, offer), None)


def requirement(fault: Fault, case: Case) -> str:
    """The id that a fault breaks in the smallest case that has it: by the option without which it is gone."""
    if fault.of_others and case.together:
        return "STP-07"
    is_usage, is_position = fault.rule.startswith("USE"), fault.rule == "STR-06"
    if case.multiplexed:
        return "MUX-10" if is_position else "MUX-01"
    if case.resumed:
        if fault.rule == "RES-08":
            return fault.rule
        if fault.of_ended:
            return "RES-10"
        if is_position:
            return "RES-06"
        if fault.of_ending and case.min_tokens and fault.rule != "LIM-01":
            return "RES-05"
        return "RES-01" if fault.rule == "SAM-01" else "RES-04"
    if case.beyond and fault.rule in ("LIM-01", "LIM-02", "STR-06"):
        return "LIM-09"
    if case.n > 1 and is_usage:
        return "SEQ-03"
    if case.n > 1 and fault.rule in ("STR-02", "STR-03"):
        return "SEQ-02"
    return fault.rule


def _faults(case: Case, answer: Answer, run: Greedy, offer: Offer) -> Iterator[Fault]:
    yield from _shape(case, answer)
    for index in case.live:
        handed = run.of(index)[: case.delivered(index)]
        yield from _choice(case, answer.choices[index], handed, run, offer)
    yield from _usage(case, answer, run)
    if offer.is_exact:
        yield from _tokens(case, answer, run, offer)


def _shape(case: Case, answer: Answer) -> Iterator[Fault]:
    if answer.status != "OK":
        yield Fault("INF-09", "a valid request failed", "OK", answer.status)
    choices = answer.choices
    if sorted(choices) != case.live:
        rule = "SEQ-01" if set(choices) - set(range(case.n)) else "STR-02"
        rule = "RES-08" if not set(case.finished).isdisjoint(choices) else rule
        yield Fault(rule, "the choices are others", case.live, sorted(choices))
    for index, choice in sorted(choices.items()):
        if not choice.terminal:
            yield Fault("STR-02", f"choice {index} has no terminal output", "one", "none")
        if late := [*choice.late, *answer.late]:
            yield Fault("STR-03", f"something came after the end of choice {index}", "nothing", len(late))


def _choice(case: Case, choice: Choice, handed: list[int], run: Greedy, offer: Offer) -> Iterator[Fault]:
    position = len(handed)
    for output in choice.outputs:
        if output.first_output_position != position:
            message = f"first_output_position of choice {choice.index} does not count its tokens"
            yield Fault("STR-06", message, position, output.first_output_position)
        position += len(output.token_ids)
    own = [*handed, *choice.tokens]
    due = ending(case, own, offer.eos_token_ids)
    expected = due or ending(case, run.of(choice.index), offer.eos_token_ids)
    rule = _rule_of_end(case, own, choice, due, run, offer)
    if expected and rule:
        message = f"choice {choice.index} has another end"
        of_others = choice.finish_reason in ENDED and not _every_id(case, offer).intersection(own[-1:])
        yield Fault(
            rule,
            message,
            _said(expected),
            _seen(choice, own),
            of_ending=True,
            of_ended=expected.count == len(handed),
            of_others=of_others,
        )
    match = choice.terminal.stop_match if choice.terminal else pb.StopMatch()
    if due and match != due.stop_match:
        message = f"stop_match of choice {choice.index} is another one"
        yield Fault("STP-03", message, _named(due.stop_match), _named(match))


def _rule_of_end(
    case: Case, own: list[int], choice: Choice, due: Ending | None, run: Greedy, offer: Offer
) -> str:
    """The requirement that the end of a choice breaks; empty when it is the one that is due."""
    reason = choice.finish_reason
    if due is None:
        return _rule_of_early_end(case, own, reason, run.of(choice.index), offer)
    if (due.count, due.reason) == (len(own), reason):
        return ""
    if due.reason == pb.FINISH_REASON_LENGTH:
        return "LIM-01" if len(own) > due.count else "LIM-02"
    return "STP-04" if due.reason == pb.FINISH_REASON_EOS else "STP-01"


def _rule_of_early_end(
    case: Case, own: list[int], reason: pb.FinishReason.ValueType, tokens: list[int], offer: Offer
) -> str:
    """Of a choice that nothing among its own tokens ended."""
    if reason not in ENDED:
        return "STR-06" if reason == pb.FINISH_REASON_LENGTH else "INF-09"
    if len(own) < case.min_tokens and _ids(case, offer).intersection(own[-1:]):
        return "LIM-06"
    due = ending(case, tokens, offer.eos_token_ids)
    if due and due.reason in ENDED and own == tokens[: due.count - 1]:
        return "STP-02"  # where it had to, only without the token that ended it
    return "STP-04" if reason == pb.FINISH_REASON_EOS else "STP-01"


def _usage(case: Case, answer: Answer, run: Greedy) -> Iterator[Fault]:
    places = [place for place, each in enumerate(answer.outputs) if each.HasField("completion_usage")]
    last = max((place for place, each in enumerate(answer.outputs) if each.finish_reason), default=-1)
    if places != [last]:
        message = "completion_usage is not on the last terminal output alone"
        yield Fault("USE-04", message, f"output {last}", f"outputs {places}")
        return
    usage = answer.outputs[last].completion_usage
    sent = sum(len(choice.tokens) for choice in answer.choices.values()) + sum(case.resumed)
    for rule, name, due in (
        ("USE-01", "completion_tokens", sent),
        ("USE-02", "prompt_tokens", len(run.prompt)),
        ("USE-03", "total_tokens", len(run.prompt) + sent),
    ):
        if (seen := getattr(usage, name)) != due:
            yield Fault(rule, f"{name} is another number", due, seen)


def _tokens(case: Case, answer: Answer, run: Greedy, offer: Offer) -> Iterator[Fault]:
    for index, choice in sorted(answer.choices.items()):
        tokens = run.of(index)
        rest = tokens[case.delivered(index) : certain(case, tokens, offer.eos_token_ids)]
        if choice.tokens[: len(rest)] != rest[: len(choice.tokens)]:
            run_of = "seeded" if run.others else "greedy"
            message = f"choice {index} has other tokens than the {run_of} run"
            yield Fault("SAM-01", message, rest, choice.tokens)


def _ids(case: Case, offer: Offer) -> set[int]:
    return system_ids(case, offer.eos_token_ids) | caller_ids(case)


def _every_id(case: Case, offer: Offer) -> set[int]:
    """Those that it ignores as well."""
    return _ids(replace(case, ignore_eos=False), offer)


def _said(due: Ending) -> str:
    return f"{due.count} tokens, {reason_name(due.reason)}"


def _named(match: pb.StopMatch) -> str:
    return str(match).strip() or "none"


def _seen(choice: Choice, own: list[int]) -> str:
    return f"{len(own)} tokens, {choice.reason_name}"
