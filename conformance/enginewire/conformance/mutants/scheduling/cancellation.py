"""Servers that go on for callers that are gone."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings

SOON = 0.05
"""gRPC's clock and ours may disagree on a deadline by this, in seconds."""

STEP_TOKENS = Settings().context_length // 2
"""Of prompts, in one step."""


class GoesOn(Reference):
    """Jobs that lost their caller run to their natural end, if `goes_on` says so."""

    def ended(self, job: Job) -> None:
        if self.live.get(job.request_id) is not job or not self.goes_on(job):
            super().ended(job)

    def goes_on(self, job: Job) -> bool:
        """True for a job that is not released."""
        raise NotImplementedError


@mutant("leak_on_cancel", kills="CAN-01")
class LeakOnCancel(GoesOn):
    def goes_on(self, job: Job) -> bool:
        return job.completion_tokens > 0


@mutant("leak_on_early_cancel", kills="CAN-02")
class LeakOnEarlyCancel(GoesOn):
    settings = replace(Settings(), first_token_seconds=0.2)

    def goes_on(self, job: Job) -> bool:
        return job.is_running and not job.completion_tokens


@mutant("leak_before_a_slow_first_token", kills="CAN-02")
class LeakBeforeASlowFirstToken(LeakOnEarlyCancel):
    """What goes on has ended within the bounds, those of a slow first token, if its prompt is large."""

    settings = replace(Settings(), first_token_seconds=0.8)


@mutant("leak_between_steps_of_a_prefill", kills="CAN-02")
class LeakBetweenStepsOfAPrefill(GoesOn):
    """What is half computed when its caller leaves is nobody's: no step goes on with it."""

    settings = replace(Settings(), first_token_seconds=0.2)

    def goes_on(self, job: Job) -> bool:
        is_half = len(job.request.token_ids) > STEP_TOKENS and not job.completion_tokens
        if job.is_running and is_half:
            job.ready_at = math.inf
        return job.is_running and is_half


@mutant("leak_on_queued_cancel", kills="CAN-02/queued")
class LeakOnQueuedCancel(GoesOn):
    def goes_on(self, job: Job) -> bool:
        return not job.is_running


@mutant("several_that_wait_go_on", kills=("CAN-02/queued", "INF-13/waiting", "MUX-09/queued"))
class SeveralThatWaitGoOn(GoesOn):
    """A request of several choices has its turn, whoever has left: each of them is looked at when it runs."""

    def goes_on(self, job: Job) -> bool:
        is_late = time.monotonic() > job.deadline - SOON
        return not job.is_running and not is_late and len(job.choices) > 1


@mutant("deadline_ignored", kills=("CAN-03", "MUX-12"))
class DeadlineIgnored(GoesOn):
    def goes_on(self, job: Job) -> bool:
        return job.is_running and time.monotonic() > job.deadline - SOON

    def reap(self, now: float) -> None:
        for job in [job for job in self.waiting if job.deadline <= now]:
            self.fail(job, Refusal(pb.ERROR_REASON_DEADLINE_EXCEEDED, "the deadline passed"))


@mutant("late_prefills_are_kept", kills="CAN-03/prefill")
class LatePrefillsAreKept(LeakBetweenStepsOfAPrefill):
    """The caller is told that it is late, and what is half computed is nobody's."""

    def goes_on(self, job: Job) -> bool:
        return job.is_running and job.ready_at == math.inf

    def reap(self, now: float) -> None:
        for job in self.running:
            is_half = len(job.request.token_ids) > STEP_TOKENS and not job.completion_tokens
            if job.deadline <= now and is_half:
                self.send(job, Refusal(pb.ERROR_REASON_DEADLINE_EXCEEDED, "the deadline passed"))
                job.deadline = job.ready_at = math.inf
        super().reap(now)


@mutant("deadline_ignored_in_the_queue", kills="CAN-03/queued")
class DeadlineIgnoredInTheQueue(GoesOn):
    def __init__(self) -> None:
        super().__init__()
        self._overdue: set[str] = set()

    def goes_on(self, job: Job) -> bool:
        return job.request_id in self._overdue or (
            not job.is_running and time.monotonic() > job.deadline - SOON
        )

    def reap(self, now: float) -> None:
        self._overdue.update(job.request_id for job in self.waiting if job.deadline <= now)
        for job in [job for job in self.running if job.deadline <= now]:
            if job.request_id not in self._overdue:
                self.fail(job, Refusal(pb.ERROR_REASON_DEADLINE_EXCEEDED, "the deadline passed"))


@mutant("leak_on_disconnect", kills="CAN-04")
class LeakOnDisconnect(GoesOn):
    """Of the streams of a connection that is lost, it notices the first."""

    has_noticed = False

    def goes_on(self, job: Job) -> bool:
        # Only there: elsewhere streams of one connection are cancelled one by one.
        if "CAN-04" not in job.request_id:
            return False
        goes_on, self.has_noticed = self.has_noticed, True
        return goes_on


@mutant("leak_half_open", kills="CAN-05")
class LeakHalfOpen(Reference):
    settings = replace(Settings(), step_seconds=0.02)

    def server_options(self) -> list[tuple[str, int]]:
        watching = ("keepalive", "ping_timeout", "pings")
        return [option for option in super().server_options() if not any(w in option[0] for w in watching)]


@mutant("pings_are_borne_by_another_name", kills="CAN-06")
class PingsAreBorneByAnotherName(Reference):
    """Which nobody knows. It sends none itself, or its callers would have no reason to."""

    def server_options(self) -> list[tuple[str, int]]:
        renamed = [
            (key.replace("min_ping", "min_recv_ping"), value) for key, value in super().server_options()
        ]
        return [option for option in renamed if option[0] != "grpc.keepalive_time_ms"]
