"""Servers that lose sight of a request when one of its choices has ended."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.scheduling.cancellation import GoesOn
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference


@mutant("aborts_miss_who_has_begun_to_end", kills="ABO-01/half-ended")
class AbortsMissWhoHasBegunToEnd(Reference):
    def abort(self, job: Job) -> None:
        if not _has_ended_one(job):
            super().abort(job)


@mutant("who_has_begun_to_end_needs_no_caller", kills="CAN-01/half-ended")
class WhoHasBegunToEndNeedsNoCaller(GoesOn):
    def goes_on(self, job: Job) -> bool:
        return _has_ended_one(job)


@mutant("the_first_end_takes_the_deadline", kills="MUX-12/half-ended")
class TheFirstEndTakesTheDeadline(Reference):
    """With what else was kept of the request."""

    def reap(self, now: float) -> None:
        for job in [job for job in self.live.values() if job.deadline <= now]:
            if not _has_ended_one(job):
                self.fail(job, Refusal(pb.ERROR_REASON_DEADLINE_EXCEEDED, "the deadline passed"))


def _has_ended_one(job: Job) -> bool:
    """One choice, while another one goes on."""
    return 0 < len(job.open_choices) < len(job.choices)
