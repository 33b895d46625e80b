"""Why choices end: limits, stop ids, end-of-sequence ids, and what the terminal says about them."""

from __future__ import annotations

from collections.abc import Iterable

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import CUT, Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.stream import Choice, reason_name
from enginewire.conformance.wire.violation import expect, expect_equal

SHAPE = ("STR-02", "STR-03", "STR-05", "STR-06", "STR-10")
EOS, STOP, LENGTH = pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


@of_answers("RES-08", needs=("SEQ-01",))
def finished_choices_are_silent(answer: Answer) -> None:
    """Those that were handed in as such."""
    for index, choice in answer.resumed.items():
        sent = answer.choices.get(index)
        expect(not (choice.finished and sent), f"choice {index} was finished before, and sends something")


@of_answers("RES-10", needs=SHAPE)
def what_has_ended_gets_no_token(answer: Answer) -> None:
    """When the last token that was handed in is the last one a choice may have, or stops it."""
    stops = answer.caller_stops | answer.system_stops
    for index, choice in answer.choices.items():
        handed = answer.resumed[index].generated_token_ids if index in answer.resumed else []
        may_stop = len(handed) >= answer.body.stop_conditions.min_tokens
        is_stopped = may_stop and not stops.isdisjoint(handed[-1:])
        if handed and (is_stopped or len(handed) >= _most(answer)):
            message = f"choice {index} had its last token already, and gets one more"
            expect(not choice.tokens, message, expected="none", seen=choice.tokens[:1])


@of_answers("LIM-01", needs=SHAPE)
def max_tokens_holds(answer: Answer) -> None:
    """For each choice, also while it goes on."""
    if not answer.resumed:
        _holds_max_tokens(answer)


@of_answers("RES-04", needs=("LIM-01", *SHAPE))
def max_tokens_holds_with_resume(answer: Answer) -> None:
    """What was handed in counts."""
    if answer.resumed:
        _holds_max_tokens(answer)


def _holds_max_tokens(answer: Answer) -> None:
    conditions = answer.body.stop_conditions
    if not conditions.max_tokens:
        return
    for index, choice in answer.choices.items():
        seen, most = answer.length(choice), conditions.max_tokens
        message = f"choice {index} has more than max_tokens tokens"
        expect(seen <= most or not choice.tokens, message, expected=most, seen=seen)


@of_answers("LIM-03", needs=("LIM-01", *SHAPE))
def one_token_is_one(answer: Answer) -> None:
    """Under max_tokens of 1, however the choice ended."""
    if answer.body.stop_conditions.max_tokens == 1 and not answer.resumed:
        for choice in answer.ended:
            expect_equal(len(choice.tokens), 1, "max_tokens of 1 does not give one token")


@of_answers("INF-04", needs=(*SHAPE, "LIM-03"))
def the_window_holds(answer: Answer) -> None:
    """Prompt and output fit it, and what fits it is not cut."""
    prompt, window = answer.prompt_tokens, answer.config.context_length
    if prompt is None or not answer.config.HasField("context_length"):
        return
    for choice in answer.choices.values():
        message = "prompt and output are longer than context_length"
        total = prompt + answer.length(choice)
        expect(total <= window or not choice.tokens, message, expected=window, seen=total)
    for choice in answer.ended:
        most = _most(answer)
        fills = prompt + answer.length(choice) >= window
        is_whole = choice.finish_reason != LENGTH or fills or answer.length(choice) >= most
        message = f"choice {choice.index} ended with LENGTH before max_tokens and the window"
        expect(is_whole, message, expected=f"{most} tokens", seen=f"{answer.length(choice)} tokens")


@of_answers("LIM-02", needs=("LIM-01", "RES-04", *SHAPE))
def max_tokens_ends_with_length(answer: Answer) -> None:
    """When its last token is none that stops."""
    for choice in answer.ended:
        if answer.length(choice) >= _most(answer) and not _may_stop(answer, choice):
            message = f"max_tokens ended choice {choice.index} with another reason"
            expect_equal(reason_name(choice.finish_reason), "LENGTH", message)


@of_answers("LIM-08", needs=(*SHAPE, "LIM-02"))
def the_window_ends_with_length(answer: Answer) -> None:
    """When the last token is none that stops; not with an error either."""
    prompt, window = answer.prompt_tokens, answer.config.context_length
    if prompt is None or not window or not answer.is_ok:
        return
    for choice in answer.choices.values():
        is_full = prompt + answer.length(choice) >= window and choice.tokens
        if is_full and not _may_stop(answer, choice) and choice.finish_reason != pb.FINISH_REASON_CANCELLED:
            message = f"choice {choice.index} fills the window and ended with another reason"
            expect_equal(reason_name(choice.finish_reason), "LENGTH", message)


@of_answers("LIM-06", needs=SHAPE)
def min_tokens_holds(answer: Answer) -> None:
    """No stop condition ends a choice before."""
    if not answer.resumed:
        _holds_min_tokens(answer)


@of_answers("RES-05", needs=SHAPE)
def min_tokens_holds_with_resume(answer: Answer) -> None:
    """What was handed in counts, so a stop after it is none too early."""
    if answer.resumed:
        _holds_min_tokens(answer)


def _holds_min_tokens(answer: Answer) -> None:
    least = answer.body.stop_conditions.min_tokens
    for choice in answer.ended if not answer.is_guided else ():
        if choice.finish_reason in (EOS, STOP):
            seen = answer.length(choice)
            message = f"a stop condition ended choice {choice.index} before min_tokens"
            expect(seen >= least, message, expected=least, seen=seen)


@of_answers("STP-01", needs=SHAPE)
def caller_stops_end_a_choice(answer: Answer) -> None:
    """At once and with STOP, every id of both lists."""
    for choice in answer.choices.values():
        _goes_not_past(answer, choice, answer.caller_stops, "a stop id of the caller")
    for choice in answer.ended:
        if _is_last(answer, choice, answer.caller_stops):
            message = f"a stop id of the caller ended choice {choice.index} with another reason"
            expect_equal(reason_name(choice.finish_reason), "STOP", message)


@of_answers("STP-04", needs=SHAPE)
def system_stops_end_a_choice(answer: Answer) -> None:
    """At once and with EOS, end-of-sequence ids and hidden ones; none does under ignore_eos."""
    for choice in answer.choices.values():
        _goes_not_past(answer, choice, answer.system_stops, "an end-of-sequence or hidden stop id")
    for choice in answer.ended:
        if _is_last(answer, choice, answer.system_stops):
            message = f"an end-of-sequence or hidden stop id ended choice {choice.index} with another reason"
            expect_equal(reason_name(choice.finish_reason), "EOS", message)
        if answer.body.stop_conditions.ignore_eos and not answer.is_guided:
            expect(choice.finish_reason != EOS, f"choice {choice.index} ended with EOS under ignore_eos")


def _goes_not_past(answer: Answer, choice: Choice, stops: Iterable[int], what: str) -> None:
    """No token but the last one is among them, from `min_tokens` on."""
    least, before = answer.body.stop_conditions.min_tokens, answer.handed_in(choice.index)
    free = max(least - 1 - before, 0)
    found = [token for token in choice.tokens[free:-1] if token in stops]
    expect(not found, f"choice {choice.index} goes on after {what}", seen=found[:1])


@of_answers("STP-02", needs=(*SHAPE, "LIM-02", "STP-04"))
def the_token_that_stops_is_the_last(answer: Answer) -> None:
    """For whoever stopped without a text, the last token is in a list that explains it."""
    if answer.is_guided:
        return
    for choice in answer.ended:
        last = answer.last_token(choice)
        if choice.finish_reason == EOS and (answer.is_known or answer.body.eos_token_ids):
            _is_among(choice, last, answer.system_ids)
        if choice.finish_reason == STOP and not answer.has_text_stops:
            _is_among(choice, last, answer.caller_ids)


def _is_among(choice: Choice, last: list[int], stops: frozenset[int]) -> None:
    message = f"the last token of choice {choice.index} is none that ends it with {choice.reason_name}"
    expect(last and last[0] in stops, message, expected=sorted(stops)[:16], seen=last)


@of_answers("STP-03", needs=(*SHAPE, "STP-01", "STP-02"))
def a_stop_names_its_match(answer: Answer) -> None:
    """The last token or a stop string that was asked for; and nothing but a stop does."""
    for output in (output for choice in answer.choices.values() for output in choice.outputs):
        has_match = output.HasField("stop_match") and output.stop_match.WhichOneof("match") is not None
        is_stop = output.finish_reason == STOP
        expect(not has_match or is_stop, "a stop_match is on an output that does not end with STOP")
        expect(has_match or not is_stop, f"choice {output.index} ended with STOP without a stop_match")
    for choice in answer.ended:
        if choice.finish_reason == STOP and choice.terminal:
            _names_its_own(answer, choice, choice.terminal.stop_match)


def _names_its_own(answer: Answer, choice: Choice, match: pb.StopMatch) -> None:
    message = f"the stop_match of choice {choice.index} is not what ended it"
    if match.HasField("text"):
        asked = list(answer.body.stop_conditions.stop)
        expect(match.text in asked, message, expected=asked, seen=match.text)
    else:
        expect_equal([match.token_id], answer.last_token(choice), message)


def _most(answer: Answer) -> float:
    """The most tokens a choice may have; infinite where only the window says."""
    conditions = answer.body.stop_conditions
    if conditions.HasField("max_tokens"):
        return conditions.max_tokens
    return 1 if answer.body.is_probe else float("inf")


def _is_last(answer: Answer, choice: Choice, stops: frozenset[int]) -> bool:
    """The last token of a choice is one of these, and may end it."""
    may_end = answer.length(choice) >= answer.body.stop_conditions.min_tokens
    return may_end and not stops.isdisjoint(answer.last_token(choice))


def _may_stop(answer: Answer, choice: Choice) -> bool:
    """A token, a text or a grammar may have ended it at the same moment; a known engine has known ids."""
    stops = answer.caller_ids | answer.system_ids
    is_stop = not stops.isdisjoint(answer.last_token(choice))
    is_unclear = answer.is_guided or answer.has_text_stops or not answer.is_known
    return is_stop or is_unclear or choice.finish_reason in CUT - {pb.FINISH_REASON_ERROR}
