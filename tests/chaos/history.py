"""What happened to each request, against what should have: the judge of every run with faults.

Each request has an answer that is known beforehand, from an engine that nobody disturbs. A request that was
heard to its end has to be that answer; one whose caller left has to be a beginning of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.backend.asking import Heard
from tests.end_to_end.chaos import answer_of

FAULTS = ("lost", "duplicated", "changed")


@dataclass
class Record:
    """One request: which one it was, what was heard, whether its caller left before the end."""

    kind: int
    heard: Heard
    task: asyncio.Task[Heard]
    was_left: bool = False

    def beginning_fault(self, truth: Heard) -> str:
        """What is wrong with what was heard so far: one of FAULTS, or nothing."""
        heard = self.heard
        if order := _fault_of_order(heard):
            return order
        choices = {output.index for output in heard.outputs}
        is_beginning = all(heard.token_ids(i) == truth.token_ids(i)[: len(heard.token_ids(i))] for i in choices)
        return "" if is_beginning else "changed"

    def fault(self, truth: Heard) -> str:
        """The same, once nothing more comes."""
        if begun := self.beginning_fault(truth):
            return begun
        if self.was_left:
            return "lost" if self.heard.failure else ""
        if self.heard.failure or set(self.heard.finishes()) != set(truth.finishes()):
            return "lost"
        return "" if answer_of(self.heard) == answer_of(truth) else "changed"

    def as_json(self) -> dict[str, object]:
        """What its caller heard: per choice where each piece began and its tokens; and how it ended."""
        pieces = [
            [output.index, output.first_output_position, list(output.token_ids), output.finish_reason]
            for output in self.heard.outputs
        ]
        events = [item.event for item in self.heard.items if item.event]
        failure = self.heard.failure and str(self.heard.failure)
        return {
            "kind": self.kind,
            "left": self.was_left,
            "events": events,
            "failure": failure,
            "heard": pieces,
        }


def _fault_of_order(heard: Heard) -> str:
    """Every token has its place: none twice, none left out, none behind the end of its choice."""
    places: Counter[int] = Counter()
    ended: set[int] = set()
    for output in heard.outputs:
        place = output.first_output_position
        if output.index in ended or (output.token_ids and place < places[output.index]):
            return "duplicated"
        if output.token_ids and place > places[output.index]:
            return "lost"
        places[output.index] += len(output.token_ids)
        if output.is_terminal:
            ended.add(output.index)
    return ""


def tally(records: Sequence[Record], truth: Sequence[Heard]) -> dict[str, int]:
    """How many streams there were, and how many have which fault."""
    faults = Counter(record.fault(truth[record.kind]) for record in records)
    return {"streams": len(records), **{fault: faults[fault] for fault in FAULTS}}
