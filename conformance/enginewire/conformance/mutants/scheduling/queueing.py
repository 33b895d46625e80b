"""Servers that treat requests wrongly while these wait, count them wrongly, and keep their ids too long."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.mixes.mixed_endings import KnowsItsStreams
from enginewire.conformance.reference.capabilities.embeddings import EmbeddingJob
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call


@mutant("aborted_requests_do_not_finish", kills=("INF-13", "INF-13/waiting"))
class AbortedRequestsDoNotFinish(Reference):
    def abort(self, job: Job) -> None:
        super().abort(job)
        self.counters.requests_finished -= 1


@mutant("failed_requests_do_not_finish", kills="INF-13/waiting")
class FailedRequestsDoNotFinish(Reference):
    def fail(self, job: Job, failure: Refusal) -> None:
        super().fail(job, failure)
        self.counters.requests_finished -= 1


@mutant("overload_counts_as_finished", kills="INF-13/without-room")
class OverloadCountsAsFinished(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            self.counters.requests_finished += refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL
            raise


@mutant("tokens_of_the_first_choice_are_generated", kills="INF-13")
class TokensOfTheFirstChoiceAreGenerated(Reference):
    def advance_job(self, job: Job) -> None:
        before = self.counters.tokens_generated
        super().advance_job(job)
        self.counters.tokens_generated = min(before + 1, self.counters.tokens_generated)


@mutant("waiting_counts_sequences", kills="INF-13/waiting")
class WaitingCountsSequences(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        load.waiting = sum(len(job.choices) for job in self.waiting)
        return load


@mutant("waiting_counts_inputs", kills="INF-13/waiting")
class WaitingCountsInputs(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        load.waiting += sum(job.left - 1 for job in self.waiting if isinstance(job, EmbeddingJob))
        return load


class _ChoiceByChoice(Reference):
    """A choice has a slot as soon as one is free."""

    def with_slots(self, job: Job) -> list[Choice]:
        left = self.settings.max_num_seqs
        for other in self.running:
            if other is job:
                break
            left -= min(len(other.open_choices), left)
        return job.open_choices[:left]

    def fits(self, job: Job) -> bool:
        blocks = self.counters.kv_blocks_used + self.blocks_for(job)
        return bool(self.with_slots(job)) and blocks <= self.settings.total_blocks


@mutant("choices_without_a_slot_wait", kills="INF-13/waiting")
class ChoicesWithoutASlotWait(_ChoiceByChoice):
    def load(self) -> pb.Load:
        load = super().load()
        load.waiting += sum(len(self.with_slots(job)) < len(job.open_choices) for job in self.running)
        return load


@mutant("prompts_of_all_choices_wait", kills="INF-13/waiting")
class PromptsOfAllChoicesWait(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        load.waiting_tokens = sum(len(job.request.token_ids) * len(job.choices) for job in self.waiting)
        return load


@mutant("who_ends_in_the_queue_is_not_counted", kills="INF-13/waiting")
class WhoEndsInTheQueueIsNotCounted(Reference):
    def release(self, job: Job) -> None:
        is_live = self.live.get(job.request_id) is job
        super().release(job)
        self.counters.requests_finished -= is_live and not job.is_running


@mutant("ids_that_wait_are_free", kills="ABO-06/queued")
class IdsThatWaitAreFree(Reference):
    """The table of ids is that of the requests that run."""

    def check_live(self, request_id: str) -> None:
        first = self.live.get(request_id)
        if first and not first.is_running:
            del self.live[request_id]
            self.waiting.remove(first)
        super().check_live(request_id)


@mutant("ids_of_what_failed_stay_taken", kills="ABO-06/late")
class IdsOfWhatFailedStayTaken(Reference):
    """Of what failed while it ran, where that was no matter of time."""

    def __init__(self) -> None:
        super().__init__()
        self._failed: set[str] = set()

    def fail(self, job: Job, failure: Refusal) -> None:
        super().fail(job, failure)
        if failure.detail.reason == pb.ERROR_REASON_INVALID_REQUEST:
            self._failed.add(job.request_id)

    def admit(self, job: Job) -> None:
        if job.request_id in self._failed:
            message = "request_id: is in use by a live request"
            raise Refusal(pb.ERROR_REASON_DUPLICATE_ID, message, field="request_id")
        super().admit(job)


@mutant("taken_ids_of_streams_fill_the_queue", kills="ABO-06/multiplexed")
class TakenIdsOfStreamsFillTheQueue(KnowsItsStreams):
    """To a stream an id that is taken is said to be a full queue."""

    def admit(self, job: Job) -> None:
        if job.request_id in self.live and self.is_multiplexed(job):
            raise Refusal(pb.ERROR_REASON_QUEUE_FULL, "the queue is full", retry_after=0.1)
        super().admit(job)


@mutant("handles_that_wait_are_not_aborted", kills="MUX-07/queued")
class HandlesThatWaitAreNotAborted(Reference):
    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        waiting = {handle for handle, job in stream.live.items() if not job.is_running}
        named = [handle for handle in frame.abort.handles if handle not in waiting]
        del frame.abort.handles[:]
        frame.abort.handles.extend(named)
        super().take(frame, stream, call)


@mutant("timeouts_are_for_what_runs", kills="MUX-12/queued")
class TimeoutsAreForWhatRuns(KnowsItsStreams):
    """Who is late has its turn, and then is late."""

    def reap(self, now: float) -> None:
        waiting = [job for job in self.waiting if self.is_multiplexed(job) and self.is_spared(job)]
        deadlines = {job: job.deadline for job in waiting}
        for job in waiting:
            job.deadline = float("inf")
        super().reap(now)
        for job, deadline in deadlines.items():
            job.deadline = deadline

    def is_spared(self, job: Job) -> bool:
        """True for a job that waits and whose deadline is not looked at."""
        return True


@mutant("timeouts_wait_for_a_slot", kills="MUX-12/queued")
class TimeoutsWaitForASlot(TimeoutsAreForWhatRuns):
    """Who is late is told so when it has its turn, and not started."""

    def is_spared(self, job: Job) -> bool:
        return not self.fits(job)


@mutant("who_is_late_had_no_room", kills="MUX-12/queued", also="MUX-03/seen")
class WhoIsLateHadNoRoom(KnowsItsStreams):
    def reap(self, now: float) -> None:
        for job in [job for job in self.waiting if self.is_multiplexed(job) and job.deadline <= now]:
            self.fail(job, Refusal(pb.ERROR_REASON_QUEUE_FULL, "it waited too long", retry_after=0.1))
        super().reap(now)


@mutant("one_timeout_hides_the_next", kills="MUX-12")
class OneTimeoutHidesTheNext(KnowsItsStreams):
    """The earliest one is remembered, and forgotten when it has passed."""

    def reap(self, now: float) -> None:
        running = [job for job in self.running if self.is_multiplexed(job)]
        has_passed = any(job.deadline <= now for job in running)
        super().reap(now)
        if has_passed:
            for job in running:
                job.deadline = float("inf")


@mutant("timeouts_abort_what_runs", kills="MUX-12")
class TimeoutsAbortWhatRuns(KnowsItsStreams):
    """With CANCELLED, as if somebody had aborted it."""

    def reap(self, now: float) -> None:
        for job in [job for job in self.running if job.deadline <= now and self.is_multiplexed(job)]:
            self.abort(job)
        super().reap(now)


@mutant("ids_of_streams_go_to_who_comes_last", kills="ABO-06/multiplexed")
class IdsOfStreamsGoToWhoComesLast(KnowsItsStreams):
    """And yet it is refused."""

    def admit(self, job: Job) -> None:
        first = self.live.get(job.request_id)
        try:
            super().admit(job)
        except Refusal:
            if first and self.is_multiplexed(first):
                self.abort(first)
            raise


@mutant("who_is_late_in_the_queue_is_not_counted", kills="INF-13/waiting")
class WhoIsLateInTheQueueIsNotCounted(Reference):
    def fail(self, job: Job, failure: Refusal) -> None:
        self.counters.requests_finished -= not job.is_running
        super().fail(job, failure)


@mutant("probes_are_not_counted", kills="INF-13")
class ProbesAreNotCounted(Reference):
    def release(self, job: Job) -> None:
        is_live = self.live.get(job.request_id) is job
        super().release(job)
        self.counters.requests_finished -= is_live and job.request.is_probe


@mutant("probes_do_not_run", kills="INF-13")
class ProbesDoNotRun(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        load.running -= sum(len(self.with_slots(job)) for job in self.running if job.request.is_probe)
        return load


@mutant("prompts_of_the_aborted_wait", kills="ABO-05")
class PromptsOfTheAbortedWait(Reference):
    """Until another request comes."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 0

    def abort(self, job: Job) -> None:
        self._left += 0 if job.is_running else len(job.request.token_ids)
        super().abort(job)

    def admit(self, job: Job) -> None:
        super().admit(job)
        self._left = 0

    def load(self) -> pb.Load:
        load = super().load()
        load.waiting_tokens += self._left
        return load


@mutant("abort_of_all_is_for_what_runs", kills="ABO-05/all")
class AbortOfAllIsForWhatRuns(Reference):
    def abort_all(self) -> list[str]:
        names = [job.request_id for job in self.running]
        for job in list(self.running):
            self.abort(job)
        return names
