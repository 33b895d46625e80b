"""The shape of an answer: choices, terminals, positions, and what may follow what."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import cast

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.stream import reason_name
from enginewire.conformance.wire.violation import Violation, expect, expect_equal


@of_answers("STR-01")
def an_answer_is_not_empty(answer: Answer) -> None:
    """At least one message."""
    expect(answer.parts or not answer.is_ok, "an answer ended with OK without a message", seen="none")


@of_answers("SEQ-01")
def choices_are_those_asked_for(answer: Answer) -> None:
    """From 0 to n - 1."""
    for index in answer.choices:
        most = answer.count - 1
        expect(index <= most, "an output names another choice", expected=f"0 to {most}", seen=index)


@of_answers("STR-10")
def reasons_are_known(answer: Answer) -> None:
    """Of this revision, or of a newer one that the contract would have to name."""
    for output in answer.terminals:
        known = output.finish_reason in pb.FinishReason.values()
        expect(known, "the contract names no such finish_reason", seen=reason_name(output.finish_reason))


@of_answers("STR-02", needs=("STR-01", "SEQ-01"))
def each_choice_has_its_terminal(answer: Answer) -> None:
    """One, for each choice that was to be generated; a prompt is computed once for all of them."""
    if not answer.is_ok or answer.late:
        return
    for index in range(1 if answer.is_handed_over else answer.count):
        count = sum(output.index == index for output in answer.terminals)
        is_due = not (index in answer.resumed and answer.resumed[index].finished)
        if is_due:
            expect_equal(count, 1, f"choice {index} has not exactly one terminal output")


@of_answers("STR-03", needs=("STR-02",))
def a_terminal_is_the_last_of_its_choice(answer: Answer) -> None:
    """Nothing of the choice follows, nothing of the request follows the last one."""
    for index, choice in answer.choices.items():
        expect(not choice.late, f"an output of choice {index} follows its terminal", seen=choice.late[:1])


@of_answers("STR-08")
def outputs_bring_something(answer: Answer) -> None:
    """A token or an end."""
    for output in answer.outputs:
        expect(output.token_ids or output.finish_reason, "an output has neither a token nor a finish_reason")


@of_answers("STR-05")
def tokens_are_deltas(answer: Answer) -> None:
    """No output begins with the one before it and says so by its position."""
    for index, choice in answer.choices.items():
        begin = answer.handed_in(index)
        for earlier, output in pairwise(choice.outputs):
            if output.first_output_position == begin:
                before, ids = earlier.token_ids[:], output.token_ids[:]
                is_repeated = 0 < len(before) < len(ids) and ids[: len(before)] == before
                expect(not is_repeated, f"token_ids of choice {index} are cumulative", seen=ids)


@of_answers("RES-06", needs=("SEQ-01",))
def resumed_positions_go_on(answer: Answer) -> None:
    """From the number of tokens that were handed in."""
    for index, choice in answer.choices.items():
        if index in answer.resumed and choice.outputs:
            seen = choice.outputs[0].first_output_position
            message = f"choice {index} does not go on at the number of its generated_token_ids"
            expect_equal(seen, answer.handed_in(index), message)


@of_answers("STR-06", needs=("STR-05", "STR-03", "RES-06"))
def positions_count_the_tokens(answer: Answer) -> None:
    """Each choice on its own, whatever lies between its outputs."""
    for index, choice in answer.choices.items():
        position = answer.handed_in(index)
        message = f"first_output_position of choice {index} does not count its tokens"
        for output in choice.outputs:
            expect_equal(output.first_output_position, position, message)
            position += len(output.token_ids)


@of_answers("INF-05")
def ids_are_of_the_vocabulary(answer: Answer) -> None:
    """Of tokens and of their alternatives."""
    if not answer.is_known:
        return
    size = answer.config.vocab_size
    alternatives = chain.from_iterable(output.logprobs.top_token_ids[:] for output in answer.scored)
    for name, ids in (("token_ids", answer.token_ids), ("top_token_ids", alternatives)):
        if (largest := max(ids, default=0)) >= size:
            raise Violation(f"{name} has no such id", expected=f"below {size}", seen=largest)


@of_answers("STR-09", needs=("STR-02", "STR-03"))
def an_answer_ends_in_one_way(answer: Answer) -> None:
    """Not with all terminals and a status."""
    if answer.is_ok or answer.detail is None or answer.is_multiplexed or not answer.terminals:
        return
    left = [index for index in range(answer.count) if index not in _finished(answer)]
    expect(left, "every choice has its terminal, and the status is not OK", seen=answer.exchange.status)


@of_answers("STR-07")
def messages_name_their_request(answer: Answer) -> None:
    """All of them."""
    if answer.is_multiplexed:
        return
    for response in cast(list[pb.GenerateResponse], answer.exchange.messages):
        message = "a message carries another request_id"
        expect_equal(response.request_id, answer.request.request_id, message)


@of_answers("STR-07")
def the_life_is_told_once(answer: Answer) -> None:
    """A definition beside STR-07: engine_lifetime_id is on the first message only, and there it is."""
    if answer.is_multiplexed:
        return
    messages = cast(list[pb.GenerateResponse], answer.exchange.messages)
    seen = [number for number, response in enumerate(messages) if response.engine_lifetime_id]
    message = "engine_lifetime_id is not on the first message alone"
    expect(seen == [0][: len(messages)], message, expected="message 0", seen=f"messages {seen}")


def _finished(answer: Answer) -> set[int]:
    handed_in = {index for index, choice in answer.resumed.items() if choice.finished}
    return handed_in | {output.index for output in answer.terminals}
