"""Servers whose refusals, loads and frames are right until a second condition comes to the first one.

A full queue, a server that was cleaned up, a handle that is used again: no check looks at these there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import grpc

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Frame, Multiplex
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.exchange import Metadata

SHORTEST_SECONDS = 0.01
SHORT_SECONDS = 0.05


@mutant("accepted_before_the_queue_is_full", kills="ERR-11/seen", traffic="ERR-16")
class AcceptedBeforeTheQueueIsFull(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        if len(self.waiting) >= self.settings.max_queued:
            await call.context.send_initial_metadata((("enginewire-lifetime-id", self.lifetime_id),))
        async for response in super().generate(request, call):
            yield response


class _Bare(Refusal):
    def trailers(self) -> Metadata:
        return ()


@mutant("duplicates_have_no_details", kills=("ABO-06", "ERR-12/seen"), traffic="ABO-*")
class DuplicatesHaveNoDetails(Reference):
    def admit(self, job: Job) -> None:
        if job.request_id in self.live:
            raise _Bare(pb.ERROR_REASON_DUPLICATE_ID, "request_id: is in use", field="request_id")
        super().admit(job)


@mutant("unsupported_may_be_sent_again", kills="ERR-12/seen", traffic="ERR-17/*")
class UnsupportedMayBeSentAgain(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        try:
            super().validate(request)
        except Refusal as refusal:
            refusal.detail.retryable = refusal.detail.reason == pb.ERROR_REASON_UNSUPPORTED
            raise


@mutant("cleaned_up_and_not_retryable", kills="ERR-12/seen", traffic="CLN-*")
class NeverAgainAfterCleanup(Reference):
    def check_state(self) -> None:
        try:
            super().check_state()
        except Refusal as refusal:
            refusal.detail.retryable = refusal.detail.reason != pb.ERROR_REASON_ENGINE_DEAD
            raise


# -- the load, abort, drain


@mutant("short_intervals_do_not_hold", kills=("WLD-03", "WLD-03/seen"))
class ShortIntervalsDoNotHold(Reference):
    """Takes all of them for the shortest one."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> AsyncIterator[pb.WatchLoadResponse]:
        if not SHORTEST_SECONDS <= request.min_interval_ms / 1000 < SHORT_SECONDS:
            async for response in super().watch_load(request):
                yield response
            return
        began, sent = time.monotonic(), 0
        while True:
            # What a busy machine held up is sent as soon as it can be.
            while sent * SHORTEST_SECONDS <= time.monotonic() - began:
                yield pb.WatchLoadResponse(load=self.load())
                sent += 1
            await asyncio.sleep(SHORTEST_SECONDS)


@mutant("choices_share_a_slot", kills=("INF-08/choices", "INF-08/seen"), also="INF-07/seen")
class ChoicesShareASlot(Reference):
    def fits(self, job: Job) -> bool:
        return super().fits(job) or (len(job.choices) > 1 and len(self.running) < self.settings.max_num_seqs)


@mutant("outcomes_of_several_are_turned", kills=("ABO-04", "ABO-04/many", "ABO-04/seen"), traffic="ABO-*")
class OutcomesOfSeveralAreTurned(Reference):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        response = await super().abort_requests(request)
        return pb.AbortResponse(results=reversed(response.results))


@mutant(
    "facts_change_after_an_abort",
    kills=("INF-03", "INF-03/after-load", "INF-03/seen"),
    traffic=("ABO-*", "INF-01", "MSG-05"),
)
class FactsChangeAfterAnAbort(Reference):
    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        info.config.metrics_ranks[:] = [0, 1] if self.counters.requests_finished > 50 else [0]
        return info


# -- multiplexed


@mutant("a_reused_handle_is_accepted_twice", kills="MUX-03/seen", traffic="MUX-06")
class AReusedHandleIsAcceptedTwice(Reference):
    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        super().say_accepted(stream, submit)
        if stream.pumps and len(stream.live) == 1:
            super().say_accepted(stream, submit)


@mutant("steps_go_back_with_a_status", kills="MUX-10/seen", traffic="MUX-*")
class StepsGoBackWithAStatus(Reference):
    def frames_of(self, events: list[pb.HandleEvent]) -> Iterator[Frame]:
        for frame in super().frames_of(events):
            if any(event.HasField("status") for event in frame.events):
                frame.step = 0
            yield frame


@mutant("deadlines_of_handles_are_bare", kills="ERR-12/seen", traffic="MUX-*")
class DeadlinesOfHandlesAreBare(Reference):
    def frames_of(self, events: list[pb.HandleEvent]) -> Iterator[Frame]:
        for event in events:
            if event.status.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]:
                event.status.ClearField("details")
        yield from super().frames_of(events)


@mutant("accepted_names_the_handle", kills="MDT-04/seen", traffic="MUX-*")
class AcceptedNamesTheHandle(Reference):
    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        if len(stream.live) > 2:
            generate = pb.GenerateRequest(request_id=f"{submit.generate.request_id}-{submit.handle}")
            submit = pb.Submit(handle=submit.handle, generate=generate)
        super().say_accepted(stream, submit)


# -- what is refused


@mutant("rows_of_several_choices_refused", kills="INF-09/together")
class RowsOfSeveralChoicesRefused(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        if request.sampling_options.n > 1 and request.output_options.logprobs:
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, "output_options.logprobs: not here", field="n")
