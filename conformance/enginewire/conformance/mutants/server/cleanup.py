"""Servers that clean up badly, and whose streams are drained badly."""

from __future__ import annotations

import os

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.mixes.mixed_endings import KnowsItsStreams
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex, Requests
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import without


@mutant("cleanup_twice_fails", kills=("CLN-01", "CLN-07/impatient"))
class CleanupTwiceFails(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if self.state == pb.ENGINE_STATE_STOPPED:
            raise Refusal(pb.ERROR_REASON_ENGINE_DEAD, "there is no engine")
        return await super().cleanup(request)


@mutant("never_already_clean", kills="CLN-01")
class NeverAlreadyClean(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        await super().cleanup(request)
        return pb.CleanupResponse()


@mutant("cleanup_hangs_streams", kills="CLN-02")
class CleanupHangsStreams(Reference):
    """Everything is released, and nobody told."""

    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if len(self.live) > 1:
            for job in list(self.live.values()):
                self.release(job)
        return await super().cleanup(request)


@mutant("cleanup_ends_streams_in_silence", kills="CLN-02", also="STR-02/seen")
class CleanupEndsStreamsInSilence(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        for job in list(self.live.values()):
            self.finish(job)
        return await super().cleanup(request)


@mutant("generate_after_cleanup", kills="CLN-03")
class GenerateAfterCleanup(Reference):
    def check_state(self) -> None:
        if self.state != pb.ENGINE_STATE_STOPPED:
            super().check_state()


@mutant("open_streams_outlive_a_cleanup", kills="CLN-03")
class OpenStreamsOutliveACleanup(Reference):
    """The state is looked at where calls come in."""

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        state, self.state = self.state, pb.ENGINE_STATE_READY
        try:
            return super().submitted(submit, call)
        finally:
            self.state = state


@mutant("cleaned_up_is_draining", kills="CLN-03")
class CleanedUpIsDraining(Reference):
    def check_state(self) -> None:
        if self.state == pb.ENGINE_STATE_STOPPED:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server goes down")
        super().check_state()


@mutant("cleanup_before_start_crash", kills="CLN-04")
class CleanupBeforeStartCrash(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if self.state == pb.ENGINE_STATE_STARTING:
            os._exit(1)
        return await super().cleanup(request)


@mutant("cleanup_before_start_is_forgotten", kills="CLN-04")
class CleanupBeforeStartIsForgotten(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if self.state == pb.ENGINE_STATE_STARTING:
            return pb.CleanupResponse()
        return await super().cleanup(request)


@mutant("cleanup_needs_drain", kills="CLN-05")
class CleanupNeedsDrain(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if self.state == pb.ENGINE_STATE_READY:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "drain first")
        return await super().cleanup(request)


@mutant("cleanup_leaks", kills="CLN-06")
class CleanupLeaks(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        response = await super().cleanup(request)
        self.counters.kv_blocks_used += 1
        return response


@mutant("cleanup_keeps_the_cache", kills="CLN-06")
class CleanupKeepsTheCache(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        kept = dict(self.cache)
        response = await super().cleanup(request)
        self.cache.update(kept)
        return response


@mutant("cleanup_cuts_short", kills="CLN-07")
class CleanupCutsShort(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        return await super().cleanup(pb.CleanupRequest(abort_in_flight=True))


@mutant("cleanup_cuts_a_drain_short", kills="CLN-07/draining")
class CleanupCutsADrainShort(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if self.state == pb.ENGINE_STATE_DRAINING and len(self.live) == 1:
            self.abort_all()
        return await super().cleanup(request)


@mutant("cleanup_beside_one_that_waits_is_new", kills="CLN-01/together")
class CleanupBesideOneThatWaitsIsNew(Reference):
    """Until the first one has its answer."""

    is_answered = False

    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        was_answered = self.is_answered
        await super().cleanup(request)
        self.is_answered = True
        return pb.CleanupResponse(already_clean=was_answered)


@mutant("cleanup_joins_the_first_one", kills="CLN-07/impatient")
class CleanupJoinsTheFirstOne(Reference):
    """Whether those in flight are aborted is up to whoever came first."""

    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        is_first = self.state != pb.ENGINE_STATE_STOPPED
        return await super().cleanup(request if is_first else pb.CleanupRequest())


@mutant("cleanup_lets_in_until_it_is_over", kills="CLN-07")
class CleanupLetsInUntilItIsOver(Reference):
    def check_state(self) -> None:
        if self.state != pb.ENGINE_STATE_STOPPED or not self.live:
            super().check_state()


@mutant("cleanup_that_nobody_offers", kills="ERR-17/cleanup")
class CleanupThatNobodyOffers(Reference):
    settings = without("cleanup")

    def allows(self, capability: str) -> bool:
        return capability == "cleanup" or super().allows(capability)


@mutant("cleanup_hands_back_what_waits", kills="CLN-07/queued")
class CleanupHandsBackWhatWaits(Reference):
    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        for job in list(self.waiting):
            self.abort(job)
        return await super().cleanup(request)


@mutant("cleanup_behind_a_drain_is_draining", kills="CLN-07/draining")
class CleanupBehindADrainIsDraining(Reference):
    """Whoever was first says what newcomers are told, until nothing is in flight."""

    def check_state(self) -> None:
        if self.state == pb.ENGINE_STATE_STOPPED and self.live and self._grace_until:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server is draining")
        super().check_state()


@mutant("who_is_handed_back_ends_the_stream", kills="DRN-07")
class WhoIsHandedBackEndsTheStream(KnowsItsStreams):
    """The whole of a multiplexed one."""

    has_handed_back = False

    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in list(self.waiting):
            self.fail(job, Refusal(pb.ERROR_REASON_DRAINING, "the server is draining"))
            if self.is_multiplexed(job):
                self.has_handed_back = True

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        await super().pump(stream, handle, job)
        if self.has_handed_back:
            stream.events.put_nowait(Refusal(pb.ERROR_REASON_DRAINING, "the server is draining"))


@mutant("drain_half_closes_streams", kills="DRN-02/multiplexed", also="MUX-08/seen")
class DrainHalfClosesStreams(Reference):
    """Those that are open end when their requests have ended."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[Multiplex] = []

    async def read(self, requests: Requests, stream: Multiplex, call: Call) -> None:
        self._opened.append(stream)
        await super().read(requests, stream, call)

    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for stream in self._opened:
            self.half_closed(stream)


@mutant("no_grace_for_submits", kills="DRN-11")
class NoGraceForSubmits(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        if self.state == pb.ENGINE_STATE_DRAINING:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server is draining")
        return super().submitted(submit, call)
