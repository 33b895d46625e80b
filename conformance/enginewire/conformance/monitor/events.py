"""Answers to annotations: only to those that were asked, in their place."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.monitor.facts import CUT, Answer
from enginewire.conformance.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import expect

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


def _keys(answer: Answer) -> list[str]:
    return [annotation.partition(":")[0] for annotation in answer.body.annotations]
