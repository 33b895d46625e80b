"""Servers that drain badly."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.reference.variants.handoffs import Prefill
from enginewire.conformance.wire.foreign import health_types


@mutant("drain_kills", kills="DRN-01")
class DrainKills(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        self.abort_all()


class _TwoAtATime(Reference):
    """Of a request two choices run, however many there are."""

    def with_slots(self, job: Job) -> list[Choice]:
        return super().with_slots(job)[:2]


@mutant("drains_count_requests", kills="DRN-12")
class DrainsCountRequests(Reference):
    def drain_progress(self) -> pb.DrainResponse:
        progress = super().drain_progress()
        progress.running = len(self.running)
        return progress


@mutant("choices_without_a_slot_wait_in_a_drain", kills="DRN-12")
class ChoicesWithoutASlotWaitInADrain(_TwoAtATime):
    """In its progress, and nowhere else."""

    def drain_progress(self) -> pb.DrainResponse:
        progress = super().drain_progress()
        progress.waiting += sum(len(job.open_choices) > len(self.with_slots(job)) for job in self.running)
        return progress


@mutant("drain_cuts_choices_without_a_slot", kills="DRN-01")
class DrainCutsChoicesWithoutASlot(_TwoAtATime):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in self.running:
            for choice in job.open_choices[len(self.with_slots(job)) :]:
                self.send(job, self.cancelled(choice))


@mutant("drain_hands_back_what_is_computed", kills="DRN-01/prefill")
class DrainHandsBackWhatIsComputed(Reference):
    """Whoever has no token yet, also where its prompt is half computed."""

    settings = replace(Settings(), first_token_seconds=0.1)

    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in [job for job in self.running if not job.completion_tokens]:
            self.fail(job, Refusal(pb.ERROR_REASON_DRAINING, "the server is draining"))


@mutant("serving_in_the_grace", kills="DRN-04/grace")
class ServingInTheGrace(Reference):
    def health(self, service: str) -> int:
        status = super().health(service)
        in_grace = self.state == pb.ENGINE_STATE_DRAINING and time.monotonic() < self._grace_until
        return health_types.SERVING if in_grace and status == health_types.NOT_SERVING else status


@mutant("drain_accepts", kills="DRN-02")
class DrainAccepts(Reference):
    def check_state(self) -> None:
        if self.state != pb.ENGINE_STATE_DRAINING:
            super().check_state()


@mutant("drain_wrong_code", kills="DRN-02", also="ERR-12/seen")
class DrainWrongCode(Reference):
    def check_state(self) -> None:
        try:
            super().check_state()
        except Refusal as refusal:
            if self.state == pb.ENGINE_STATE_DRAINING:
                refusal.code = grpc.StatusCode.FAILED_PRECONDITION
            raise


@mutant("drained_accepts", kills="DRN-02")
class DrainedAccepts(Reference):
    def check_state(self) -> None:
        if self.state != pb.ENGINE_STATE_DRAINING or self.live:
            super().check_state()


@mutant("not_retryable", kills="DRN-08")
class NotRetryable(Reference):
    def check_state(self) -> None:
        try:
            super().check_state()
        except Refusal as refusal:
            refusal.detail.retryable = self.state != pb.ENGINE_STATE_DRAINING
            raise


@mutant("drain_not_idempotent", kills="DRN-03")
class DrainNotIdempotent(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        if self.state == pb.ENGINE_STATE_DRAINING:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "a drain is under way")
        super().begin_drain(request)


@mutant("drain_leaves_joiners", kills="DRN-03", also="DRN-05/seen")
class DrainLeavesJoiners(Reference):
    """Who joins sees the beginning only."""

    async def drain(self, request: pb.DrainRequest) -> AsyncIterator[pb.DrainResponse]:
        joins = self.state == pb.ENGINE_STATE_DRAINING
        async for progress in super().drain(request):
            yield progress
            if joins:
                return


class ShowsLate(Reference):
    """A drain is visible when it has nothing left to do."""

    def hides_the_drain(self) -> bool:
        return self.state == pb.ENGINE_STATE_DRAINING and bool(self.live)


@mutant("drain_no_state", kills="DRN-04")
class DrainNoState(ShowsLate):
    def load(self) -> pb.Load:
        load = super().load()
        if self.hides_the_drain():
            load.state = pb.ENGINE_STATE_READY
        return load


@mutant("drain_health_late", kills="DRN-04")
class DrainHealthLate(ShowsLate):
    def health(self, service: str) -> int:
        return health_types.SERVING if self.hides_the_drain() else super().health(service)


@mutant("drain_returns_early", kills="DRN-05")
class DrainReturnsEarly(Reference):
    def continue_drain(self) -> None:
        super().continue_drain()
        self._drained = True


@mutant("drains_wait_for_single_choices", kills="DRN-05")
class DrainsWaitForSingleChoices(Reference):
    def is_busy(self) -> bool:
        return bool(self.waiting) or any(len(job.choices) == 1 for job in self.live.values())


@mutant("drain_hangs", kills="DRN-05/timed-out")
class DrainHangs(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(pb.DrainRequest(admission_grace=request.admission_grace))


@mutant("drain_times_out_in_silence", kills="DRN-05/timed-out")
class DrainTimesOutInSilence(Reference):
    def drain_end(self) -> pb.DrainResponse:
        return pb.DrainResponse(state=pb.DRAIN_STATE_DRAINED)


class ClosedWhileDraining(Reference):
    """Some call is refused with the requests."""

    def check_open(self) -> None:
        if self.state == pb.ENGINE_STATE_DRAINING:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server is draining")


@mutant("drain_blocks_abort", kills="DRN-06")
class DrainBlocksAbort(ClosedWhileDraining):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        if len(self.live) == 2:
            self.check_open()
        return await super().abort_requests(request)


@mutant("drain_aborts_by_id_alone", kills="DRN-06")
class DrainAbortsByIdAlone(Reference):
    """All that there are end by themselves, it thinks."""

    def abort_all(self) -> list[str]:
        return [] if self.state == pb.ENGINE_STATE_DRAINING else super().abort_all()


@mutant("drain_blocks_info", kills="DRN-06", also="INF-01/seen")
class DrainBlocksInfo(ClosedWhileDraining):
    async def info(self) -> pb.GetEngineInfoResponse:
        self.check_open()
        return await super().info()


@mutant("aborts_wait_with_the_queue", kills="DRN-06/queued")
class AbortsWaitWithTheQueue(Reference):
    """What waits when a drain begins is about to be handed back anyway."""

    def abort(self, job: Job) -> None:
        if self.state != pb.ENGINE_STATE_DRAINING or job not in self.waiting:
            super().abort(job)


@mutant("drain_drops_queue", kills="DRN-07")
class DrainDropsQueue(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in list(self.waiting):
            self.abort(job)


@mutant("drain_fails_queue", kills="DRN-07")
class DrainFailsQueue(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in list(self.waiting):
            self.fail(job, Refusal(pb.ERROR_REASON_CANCELLED, "the server goes down"))


@mutant("drain_drops_handoff", kills="DRN-09")
class DrainDropsHandoff(Prefill):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        self.pending.clear()


@mutant("drain_forgets_handoff", kills="DRN-09")
class DrainForgetsHandoff(Prefill):
    def is_busy(self) -> bool:
        return bool(self.live)


@mutant("no_time_is_the_usual_time", kills="DRN-10")
class NoTimeIsTheUsualTime(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        if not request.deadline.ToNanoseconds():
            request.ClearField("deadline")
        super().begin_drain(request)


@mutant("probes_outlive_drains", kills=("DRN-05/timed-out", "DRN-06"))
class ProbesOutliveDrains(Reference):
    """They take no time, somebody thought."""

    def abort_all(self) -> list[str]:
        spared = self.state == pb.ENGINE_STATE_DRAINING
        jobs = [job for job in self.live.values() if not (spared and job.request.is_probe)]
        for job in jobs:
            self.abort(job)
        return [job.request_id for job in jobs]


@mutant("drain_without_grace", kills="DRN-11")
class DrainWithoutGrace(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        request.ClearField("admission_grace")
        super().begin_drain(request)


@mutant("first_deadline_wins", kills="DRN-10")
class FirstDeadlineWins(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        if self.state == pb.ENGINE_STATE_READY:
            super().begin_drain(request)


@mutant("drain_forgets_open_streams", kills="DRN-02/multiplexed")
class DrainForgetsOpenStreams(Reference):
    """Looks at its state when a call begins."""

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        state, is_draining = self.state, self.state == pb.ENGINE_STATE_DRAINING
        self.state = pb.ENGINE_STATE_READY if is_draining else state
        try:
            return super().submitted(submit, call)
        finally:
            self.state = state


@mutant("the_last_deadline_ends_the_drain", kills="DRN-10/first")
class TheLastDeadlineEndsTheDrain(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        if request.deadline.seconds:
            self._drain_deadline = None
        super().begin_drain(request)


@mutant("a_grace_ends_by_itself", kills="DRN-05/timed-out")
class AGraceEndsByItself(Reference):
    def continue_drain(self) -> None:
        if time.monotonic() >= self._grace_until:
            super().continue_drain()


@mutant("who_joins_a_drain_brings_a_grace", kills="DRN-02/joined")
class WhoJoinsADrainBringsAGrace(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        grace = request.admission_grace.ToTimedelta().total_seconds()
        if self.state == pb.ENGINE_STATE_DRAINING and grace:
            self._grace_until = time.monotonic() + grace
        super().begin_drain(request)
