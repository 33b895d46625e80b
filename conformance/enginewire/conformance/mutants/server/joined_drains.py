"""Servers that drain badly: what they remember, count, and refuse."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.embeddings import EmbeddingJob
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.foreign import health_types

REMEMBERED_SECONDS = 1.0


@mutant("health_is_remembered", kills="DRN-04")
class HealthIsRemembered(Reference):
    """For a second."""

    asked_at, told = 0.0, 0

    async def check_health(self, service: str) -> int:
        if service != health_types.READINESS:
            return await super().check_health(service)
        if time.monotonic() - self.asked_at > REMEMBERED_SECONDS:
            self.asked_at, self.told = time.monotonic(), await super().check_health(service)
        return self.told


@mutant("deadlines_begin_with_the_end_of_a_grace", kills="DRN-05/timed-out")
class DeadlinesBeginWithTheEndOfAGrace(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        if self._drain_deadline is not None:
            self._drain_deadline += request.admission_grace.ToTimedelta().total_seconds()


@mutant("less_than_a_second_is_not_negative", kills="DRN-10/negative")
class LessThanASecondIsNotNegative(Reference):
    async def drain(self, request: pb.DrainRequest) -> AsyncIterator[pb.DrainResponse]:
        if not request.deadline.seconds and request.deadline.nanos < 0:
            request.deadline.nanos = 0
        async for progress in super().drain(request):
            yield progress


@mutant("drains_begin_before_they_are_checked", kills="DRN-10/negative")
class DrainsBeginBeforeTheyAreChecked(Reference):
    async def drain(self, request: pb.DrainRequest) -> AsyncIterator[pb.DrainResponse]:
        if request.deadline.ToTimedelta().total_seconds() < 0:
            self.begin_drain(pb.DrainRequest())
        async for progress in super().drain(request):
            yield progress


@mutant("who_joins_a_drain_is_not_checked", kills="DRN-10/negative")
class WhoJoinsADrainIsNotChecked(Reference):
    async def drain(self, request: pb.DrainRequest) -> AsyncIterator[pb.DrainResponse]:
        joins = self.state == pb.ENGINE_STATE_DRAINING
        if joins and request.deadline.ToTimedelta().total_seconds() < 0:
            request.ClearField("deadline")
        async for progress in super().drain(request):
            yield progress


@mutant("who_joins_ends_the_grace", kills="DRN-11")
class WhoJoinsEndsTheGrace(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        is_draining = self.state == pb.ENGINE_STATE_DRAINING
        super().begin_drain(request)
        if is_draining:
            grace = request.admission_grace.ToTimedelta().total_seconds()
            self._grace_until = min(self._grace_until, time.monotonic() + grace)


@mutant("who_joins_in_a_grace_waits_for_its_end", kills="DRN-10/grace")
class WhoJoinsInAGraceWaitsForItsEnd(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        joins, before = time.monotonic() < self._grace_until, self._drain_deadline
        super().begin_drain(request)
        if joins:
            self._drain_deadline = before


@mutant("what_is_handed_back_never_was", kills="INF-13/draining")
class WhatIsHandedBackNeverWas(Reference):
    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in list(self.waiting):
            self.fail(job, Refusal(pb.ERROR_REASON_DRAINING, "the server is draining", retry_after=0.1))
            self.counters.requests_finished -= 1


@mutant("aborts_of_cleanups_end_what_runs", kills="CLN-07/impatient")
class AbortsOfCleanupsEndWhatRuns(Reference):
    """What waits for a slot is not in flight, it thinks."""

    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if request.abort_in_flight:
            for job in list(self.running):
                self.abort(job)
        return await super().cleanup(pb.CleanupRequest())


@mutant("a_second_cleanup_ends_at_once", kills="CLN-01/together")
class ASecondCleanupEndsAtOnce(Reference):
    """It is the first one's that waits."""

    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        if self.state == pb.ENGINE_STATE_STOPPED and not request.abort_in_flight:
            return pb.CleanupResponse(already_clean=True)
        return await super().cleanup(request)


@mutant("a_grace_outlives_a_cleanup", kills="CLN-07/draining")
class AGraceOutlivesACleanup(Reference):
    def check_state(self) -> None:
        if self.state != pb.ENGINE_STATE_STOPPED or not self.live or time.monotonic() >= self._grace_until:
            super().check_state()


@mutant("a_drain_hides_the_cleanup_before_it", kills="CLN-07")
class ADrainHidesTheCleanupBeforeIt(Reference):
    hides_cleanup = False

    def begin_drain(self, request: pb.DrainRequest) -> None:
        self.hides_cleanup = self.state == pb.ENGINE_STATE_STOPPED
        super().begin_drain(request)

    def check_state(self) -> None:
        if self.hides_cleanup and self.live:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server is draining")
        super().check_state()


@mutant("the_end_of_a_grace_hides_a_cleanup", kills="CLN-07/draining")
class TheEndOfAGraceHidesACleanup(Reference):
    """Newcomers are told what has begun last."""

    def check_state(self) -> None:
        had_grace = 0 < self._grace_until <= time.monotonic()
        if self.state == pb.ENGINE_STATE_STOPPED and self.live and had_grace:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server is draining")
        super().check_state()


@mutant("drains_let_embeddings_in", kills="DRN-02/embeddings")
class DrainsLetEmbeddingsIn(Reference):
    def check_state(self) -> None:
        if not self._embeds:
            super().check_state()

    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        self._embeds = self.state == pb.ENGINE_STATE_DRAINING
        try:
            return await super().embed(request, call)
        finally:
            self._embeds = False

    _embeds = False


@mutant("drains_forget_embeddings", kills="DRN-05/embeddings")
class DrainsForgetEmbeddings(Reference):
    """Only what has a stream is in flight."""

    def is_busy(self) -> bool:
        return not all(isinstance(job, EmbeddingJob) for job in self.live.values())
