"""Servers that a slow reader can hurt."""

from __future__ import annotations

import math
import time

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Item, Job
from enginewire.conformance.reference.server import Reference

LAGGING = 48
"""Items in the queue of a job whose reader really stalls; a busy machine lets a few gather."""


@mutant("drops_when_slow", kills="BPR-01", also="STR-06/seen")
class DropsWhenSlow(Reference):
    def send(self, job: Job, item: Item) -> None:
        is_whole = isinstance(item, pb.LLMEngineOutput) and not item.finish_reason
        if not is_whole or job.items.qsize() < LAGGING:
            super().send(job, item)


@mutant("repeats_when_slow", kills="BPR-01", also="STR-06/seen")
class RepeatsWhenSlow(Reference):
    def send(self, job: Job, item: Item) -> None:
        super().send(job, item)
        if isinstance(item, pb.LLMEngineOutput) and job.items.qsize() == LAGGING:
            super().send(job, item)


@mutant("slow_readers_miss_what_matched", kills="BPR-01", also="STP-03/seen")
class SlowReadersMissWhatMatched(Reference):
    def send(self, job: Job, item: Item) -> None:
        if isinstance(item, pb.LLMEngineOutput) and job.items.qsize() > LAGGING:
            item.ClearField("stop_match")
        super().send(job, item)


@mutant("slow_reader_blocks_all", kills="BPR-02")
class SlowReaderBlocksAll(Reference):
    def has_room(self, job: Job) -> bool:
        # Only there: elsewhere it would keep whole checks waiting for nothing.
        stalled = [other for other in self.running if "BPR-02" in other.request_id]
        others = [other for other in stalled if other is not job]
        return super().has_room(job) and all(other.items.qsize() < LAGGING for other in others)


@mutant("unbounded_buffer", kills="BPR-03")
class UnboundedBuffer(Reference):
    def has_room(self, job: Job) -> bool:
        return True


@mutant("slow_reader_fails_unnamed", kills="BPR-03")
class SlowReaderFailsUnnamed(Reference):
    """Ends the request as if it had been aborted."""

    def has_room(self, job: Job) -> bool:
        if not super().has_room(job) and "BPR-03" in job.request_id:
            self.abort(job)
            return False
        return super().has_room(job)


@mutant("stalled_unabortable", kills="BPR-04")
class StalledUnabortable(Reference):
    def abort(self, job: Job) -> None:
        if job.items.qsize() < LAGGING:
            super().abort(job)


@mutant("stalled_for_a_second_unabortable", kills="BPR-04")
class StalledForASecondUnabortable(Reference):
    """Those are left to what looks for them from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled_at: dict[Job, float] = {}

    def send(self, job: Job, item: Item) -> None:
        super().send(job, item)
        if job.items.qsize() == LAGGING:
            self.stalled_at[job] = time.monotonic()

    def abort(self, job: Job) -> None:
        if time.monotonic() < self.stalled_at.get(job, math.inf) + 1:
            super().abort(job)


@mutant("stalled_uncancellable", kills="BPR-04")
class StalledUncancellable(Reference):
    """An Abort lets go, with which the kit tidies up: every later check would fail as well."""

    def ended(self, job: Job) -> None:
        if "BPR-04" not in job.request_id or job.items.qsize() < LAGGING:
            super().ended(job)
