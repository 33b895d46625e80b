"""What only some answers have: events for annotations, hand-offs, the token of a probe."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import CUT, Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import expect, expect_equal

MOST_BYTES: Final = 65536
MOST: Final = 1024


@of_answers("EVT-02")
def events_are_asked_for(answer: Answer) -> None:
    """Each by its key; none is larger, or comes more often, than the contract bears."""
    asked = _keys(answer)
    events = [part for part in answer.parts if isinstance(part, pb.EngineEvent)]
    for event in events:
        expect(event.event in asked, "an event comes that nobody asked for", expected=asked, seen=event.event)
        expect(event.ByteSize() <= MOST_BYTES, "an event is too large", seen=event.ByteSize())
    expect(len(events) <= MOST, "a request has too many events", expected=MOST, seen=len(events))


@of_answers("EVT-03", needs=("STR-02", "STR-03"))
def events_come_before_the_end(answer: Answer) -> None:
    """After the acceptance and before the last terminal output."""
    if not answer.is_ok or answer.is_multiplexed:
        return
    last = answer.parts[-1] if answer.parts else None
    expect(not isinstance(last, pb.EngineEvent), "an event comes after the last terminal output", seen=last)


@of_answers("EVT-01", needs=("STR-02",))
def known_annotations_are_answered(answer: Answer) -> None:
    """Of a request that was served to its end."""
    is_cut = any(output.finish_reason in CUT for output in answer.terminals)
    if not answer.is_ok or answer.body.resume.choices or is_cut:
        return
    seen = {part.event for part in answer.parts if isinstance(part, pb.EngineEvent)}
    due = set(_keys(answer)) & set(answer.config.capabilities.annotations)
    expect(due <= seen, "an annotation has no event", expected=sorted(due), seen=sorted(seen))


@of_answers("DIS-02", needs=("STR-02",))
def prefill_answers_are_one_output(answer: Answer) -> None:
    """With at most one token and what the other half needs."""
    is_prefill = answer.config.role == pb.ENGINE_ROLE_PREFILL and not answer.body.is_probe
    if not (is_prefill and answer.is_ok) or any(output.finish_reason in CUT for output in answer.outputs):
        return
    expect_equal(len(answer.outputs), 1, "the answer of a prefill engine is not one output")
    (output,) = answer.outputs
    expect(len(output.token_ids) <= 1, "a prefill answer has more than one token", seen=len(output.token_ids))
    expect(output.prefill_handoff.params, "a prefill answer has no hand-off, or an empty one")


@of_answers("DIS-06")
def hand_offs_are_of_prefills_that_worked(answer: Answer) -> None:
    """On a terminal output, and on none that says that it failed."""
    for output in answer.outputs:
        if output.HasField("prefill_handoff"):
            worked = output.finish_reason and output.finish_reason not in CUT
            expect(worked, "a hand-off is on an output that ends nothing, or that failed")


@of_answers("PRB-02", needs=("STR-02",))
def probes_generate(answer: Answer) -> None:
    """A token, or on a prefill engine a hand-off; unless all that there was to generate was handed in."""
    is_whole = answer.is_ok and not any(output.finish_reason in CUT for output in answer.outputs)
    if answer.body.is_probe and is_whole and not answer.resumed:
        made = any(output.token_ids or output.HasField("prefill_handoff") for output in answer.outputs)
        expect(made, "a probe was served without a generated token")


def _keys(answer: Answer) -> list[str]:
    return [annotation.partition(":")[0] for annotation in answer.body.annotations]
