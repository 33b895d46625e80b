"""What happened to each request, against what should have: the judge of every run with faults.

Each request has an answer that is known beforehand, from an engine that nobody disturbs. A request that was
heard to its end has to be that answer; one whose caller left has to be a beginning of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from enginewire import v1 as pb
from tests.backend.asking import Heard
from tests.end_to_end.chaos.stage import answer_of

FAULTS = ("lost", "duplicated", "changed")


@dataclass(frozen=True)
class Truth:
    """The answer of an engine that nobody disturbs: the tokens of each choice, and whatever else counts."""

    tokens: dict[int, list[int]]
    answer: dict[int, tuple[object, ...]]

    @classmethod
    def of(cls, heard: Heard) -> Truth:
        """What was heard is the truth."""
        return cls({index: heard.token_ids(index) for index in heard.finishes()}, answer_of(heard))


@dataclass
class Record:
    """One request: its kind, what was heard, whether its caller left early; then what is wrong with it."""

    kind: int
    heard: Heard
    task: asyncio.Task[Heard]
    was_left: bool = False
    fault: str = ""
    is_judged: bool = False

    def beginning_fault(self, truth: Truth) -> str:
        """What is wrong with what was heard so far: one of FAULTS, or nothing."""
        places: dict[int, int] = {}
        ended: set[int] = set()
        for output in self.heard.outputs:
            index, place, ids = output.index, output.first_output_position, list(output.token_ids)
            begin = places.get(index, 0)
            if index in ended or (ids and place < begin):
                return "duplicated"
            if ids and place > begin:
                return "lost"
            if ids != truth.tokens[index][begin : begin + len(ids)]:
                return "changed"
            places[index] = begin + len(ids)
            if output.is_terminal:
                ended.add(index)
        return ""

    def judge(self, truth: Truth) -> str:
        """The same, once nothing more comes. What was right is not kept."""
        if not self.is_judged:
            self.fault, self.is_judged = self.beginning_fault(truth) or self._fault_of_end(truth), True
            if not self.fault:
                self.heard.items = [item for item in self.heard.items if item.event]
        return self.fault

    def _fault_of_end(self, truth: Truth) -> str:
        if self.was_left:
            return "lost" if self.heard.failure else ""
        if self.heard.failure or set(self.heard.finishes()) != set(truth.tokens):
            return "lost"
        return "" if answer_of(self.heard) == truth.answer else "changed"

    @property
    def why(self) -> str:
        """What its end was, of one that has something wrong with it."""
        if failure := self.heard.failure:
            return f"{pb.ErrorReason.Name(failure.reason).removeprefix('ERROR_REASON_')}, {failure.message}"
        if self.task.done() and not self.task.cancelled() and (error := self.task.exception()):
            return repr(error)
        return "the end of the answer" if self.heard.finishes() else "nothing"

    def as_json(self) -> dict[str, object]:
        """What its caller heard: per choice where each piece began and its tokens; and how it ended."""
        pieces = [
            [output.index, output.first_output_position, list(output.token_ids), output.finish_reason]
            for output in self.heard.outputs
        ]
        events = [item.event for item in self.heard.items if item.event]
        said = {"events": events, "why": self.why, "heard": pieces}
        return {"kind": self.kind, "left": self.was_left, "fault": self.fault, **said}


def reasons(records: Sequence[Record]) -> list[str]:
    """Why streams have a fault, the most frequent reason first."""
    found = Counter(f"{record.fault}: it ended with {record.why}" for record in records if record.fault)
    return [f"{count} × {reason}" for reason, count in found.most_common()]


def tally(records: Sequence[Record]) -> dict[str, int]:
    """How many streams there were, and how many have which fault."""
    faults = Counter(record.fault for record in records)
    return {"streams": len(records), **{fault: faults[fault] for fault in FAULTS}}
