"""Servers whose multiplexed stream is not the same as many calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import takewhile

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Frame, Multiplex
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import without

Events = list[pb.HandleEvent]


@mutant("mux_without_usage", kills="MUX-01", also="USE-04/seen")
class MuxWithoutUsage(Reference):
    def frames_of(self, events: Events) -> Iterator[Frame]:
        for event in events:
            event.output.ClearField("completion_usage") if event.HasField("output") else None
        yield from super().frames_of(events)


@mutant("mux_loses_outputs_with_logprobs", kills="MUX-01/logprobs", also="STR-06/seen")
class MuxLosesOutputsWithLogprobs(Reference):
    def frames_of(self, events: Events) -> Iterator[Frame]:
        kept = [
            event for event in events if event.output.finish_reason or not event.output.HasField("logprobs")
        ]
        yield from super().frames_of(kept)


@mutant("mux_unseeded", kills="MUX-01/seeded")
class MuxUnseeded(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        submit.generate.request.sampling_options.ClearField("seed")
        return super().submitted(submit, call)


@mutant(
    "mux_forgets_choices",
    kills="MUX-01/choices",
    also=("RES-06/seen", "RES-08/seen", "STR-03/seen", "STR-06/seen"),
)
class MuxForgetsChoices(Reference):
    def frames_of(self, events: Events) -> Iterator[Frame]:
        for frame in super().frames_of(events):
            frame.ClearField("indexes")
            yield frame


@mutant("mux_event_after_the_end", kills="MUX-02")
class MuxEventAfterTheEnd(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        await super().pump(stream, handle, job)
        # Only there: elsewhere the handle may be in use again.
        if "MUX-02" in job.request_id:
            stream.events.put_nowait(pb.HandleEvent(handle=handle, output=pb.LLMEngineOutput(token_ids=[1])))


@mutant("mux_accepted_late", kills="MUX-03")
class MuxAcceptedLate(Reference):
    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        """See `pump`."""

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        # Only there: a request that fails would have to be answered here as well.
        if "MUX-03" not in job.request_id:
            generate = pb.GenerateRequest(request_id=job.request_id)
            super().say_accepted(stream, pb.Submit(handle=handle, generate=generate))
            await super().pump(stream, handle, job)
            return
        seen = False
        stream_put = stream.events.put_nowait
        async for output in self.outputs(job):
            stream_put(pb.HandleEvent(handle=handle, output=output))
            if not seen and not output.finish_reason:
                accepted = pb.Accepted(engine_lifetime_id=self.lifetime_id, request_id=job.request_id)
                await self.flushed(stream)
                stream_put(pb.HandleEvent(handle=handle, accepted=accepted))
                seen = True
        del stream.live[handle]
        stream.end_if_done()

    async def flushed(self, stream: Multiplex) -> None:
        """Wait until what was queued is sent."""
        while not stream.events.empty():  # noqa: ASYNC110  # simpler than an event
            await asyncio.sleep(0.001)


@mutant("mux_accepted_twice", kills="MUX-03")
class MuxAcceptedTwice(Reference):
    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        super().say_accepted(stream, submit)
        super().say_accepted(stream, submit)


@mutant("mux_accepts_before_it_checks", kills="MUX-03", also="MDT-04/seen")
class MuxAcceptsBeforeItChecks(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        try:
            return super().submitted(submit, call)
        except Refusal as refusal:
            refusal.is_late = True  # type: ignore[attr-defined]  # a mark for `submit`
            raise

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        if submit.generate.request.model:
            self.say_accepted(stream, submit)
        super().submit(stream, submit, call)


@mutant("mux_rejection_ends_the_stream", kills="MUX-04")
class MuxRejectionEndsTheStream(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        try:
            return super().submitted(submit, call)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_MODEL_NOT_FOUND:
                raise _Fatal from refusal
            raise

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        try:
            super().submit(stream, submit, call)
        except _Fatal:
            raise Refusal(pb.ERROR_REASON_MODEL_NOT_FOUND, "model: is not served here") from None


class _Fatal(Exception):
    pass


@mutant("mux_rejection_without_details", kills="MUX-04", also="ERR-12/seen")
class MuxRejectionWithoutDetails(Reference):
    def frames_of(self, events: Events) -> Iterator[Frame]:
        for frame in super().frames_of(events):
            for event in frame.events:
                if event.HasField("status"):
                    event.status.ClearField("details")
            yield frame


@mutant("mux_live_handle_ok", kills="MUX-05", also="MUX-08/seen")
class MuxLiveHandleOk(Reference):
    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        if submit.handle not in stream.live:
            super().submit(stream, submit, call)
            return
        self.abort(stream.live[submit.handle])
        self.half_closed(stream)


@mutant("mux_handle_burnt", kills="MUX-06")
class MuxHandleBurnt(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        await super().pump(stream, handle, job)
        if not stream.is_closing:
            stream.live[handle] = job

    def half_closed(self, stream: Multiplex) -> None:
        for handle, job in list(stream.live.items()):
            if job.request_id not in self.live:
                del stream.live[handle]
        super().half_closed(stream)


@mutant("mux_abort_ignored", kills="MUX-07")
class MuxAbortIgnored(Reference):
    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        frame.ClearField("abort")
        super().take(frame, stream, call)


@mutant("mux_aborts_before_submits", kills="MUX-07")
class MuxAbortsBeforeSubmits(Reference):
    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        super().take(pb.GenerateMultiplexedRequest(abort=frame.abort), stream, call)
        super().take(pb.GenerateMultiplexedRequest(submits=frame.submits), stream, call)


@mutant("mux_abort_takes_all", kills="MUX-07")
class MuxAbortTakesAll(Reference):
    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        super().take(frame, stream, call)
        for job in list(stream.live.values()) if frame.abort.handles else []:
            if not job.is_running or job.open_choices:
                self.abort(job)


@mutant("mux_aborts_the_first_use_of_a_handle", kills="MUX-07/used-again")
class MuxAbortsTheFirstUseOfAHandle(Reference):
    """Whose request is over."""

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        super().take(pb.GenerateMultiplexedRequest(submits=frame.submits), stream, call)
        first: dict[int, Job] = self._first.setdefault(stream, {})
        for handle, job in stream.live.items():
            first.setdefault(handle, job)
        for handle in frame.abort.handles:
            if handle in first and stream.live.get(handle) is first[handle]:
                self.abort(first[handle])

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[Multiplex, dict[int, Job]] = {}


@mutant("mux_half_close_cuts", kills="MUX-08")
class MuxHalfCloseCuts(Reference):
    def half_closed(self, stream: Multiplex) -> None:
        for job in list(stream.live.values()):
            self.abort(job)
        super().half_closed(stream)


@mutant("mux_half_close_hangs_when_empty", kills="MUX-08")
class MuxHalfCloseFailsWhenEmpty(Reference):
    def half_closed(self, stream: Multiplex) -> None:
        if not stream.pumps:
            stream.events.put_nowait(Refusal(pb.ERROR_REASON_INTERNAL, "fault 5c1d"))
        super().half_closed(stream)


@mutant("mux_end_leaks", kills="MUX-09")
class MuxEndLeaks(Reference):
    """The requests of a stream that is cancelled run to their end."""

    def stream_ended(self, stream: Multiplex) -> None:
        for job in stream.live.values():
            if "MUX-09" not in job.request_id:
                self.ended(job)


@mutant("mux_half_close_forgets_the_queue", kills="MUX-08/queued", also=("MUX-08/seen",))
class MuxHalfCloseForgetsTheQueue(Reference):
    """Ends with what runs when no more requests come."""

    def half_closed(self, stream: Multiplex) -> None:
        super().half_closed(stream)
        if stream.live and not any(job.is_running for job in stream.live.values()):
            stream.events.put_nowait(None)


@mutant("mux_end_leaks_the_queue", kills="MUX-09/queued")
class MuxEndLeaksTheQueue(Reference):
    """The requests of a stream that is cancelled have their turn if they wait."""

    def stream_ended(self, stream: Multiplex) -> None:
        for job in stream.live.values():
            if job.is_running:
                self.ended(job)


@mutant("mux_step_goes_back", kills="MUX-10")
class MuxStepGoesBack(Reference):
    def frames_of(self, events: Events) -> Iterator[Frame]:
        for frame in super().frames_of(events):
            frame.step = 1_000_000 - frame.step
            yield frame


@mutant("mux_drops_when_slow", kills="MUX-11", also=("LOG-07/seen", "STR-06/seen"))
class MuxDropsWhenSlow(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        if "MUX-11" in job.request_id:
            stream = _Leaky(stream.live, stream.events, stream.pumps, stream.is_closing)
        await super().pump(stream, handle, job)


class _Leaky(Multiplex):
    def put(self, event: pb.HandleEvent) -> None:
        if self.events.qsize() < 16 or event.output.finish_reason:
            super().put(event)


@mutant("mux_timeout_ignored", kills="MUX-12")
class MuxTimeoutIgnored(Reference):
    def deadline_of(self, submit: pb.Submit, call: Call) -> float:
        return call.deadline


@mutant("mux_no_time_is_all_time", kills="MUX-12")
class MuxNoTimeIsAllTime(Reference):
    def deadline_of(self, submit: pb.Submit, call: Call) -> float:
        if not submit.timeout.ToNanoseconds():
            submit.ClearField("timeout")
        return super().deadline_of(submit, call)


@mutant("mux_served_unadvertised", kills="ERR-17/multiplexed")
class MuxServedUnadvertised(Reference):
    settings = without("multiplexed")

    def require(self, capability: str) -> None:
        if capability != "multiplexed":
            super().require(capability)


@mutant("mux_broken_streams_keep_their_requests", kills="MUX-05")
class MuxBrokenStreamsKeepTheirRequests(Reference):
    """Whoever cancels frees what runs; a stream that the server ends does not."""

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        if submit.handle in stream.live:
            stream.live.clear()
            raise invalid("submits.handle", "is live", submit.handle, "a handle that is not in use")
        super().submit(stream, submit, call)


@mutant("mux_aborts_end_at_a_stranger", kills="MUX-07")
class MuxAbortsEndAtAStranger(Reference):
    """What stands behind a handle that is not live is not looked at."""

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        super().take(pb.GenerateMultiplexedRequest(submits=frame.submits), stream, call)
        frame.abort.handles[:] = takewhile(stream.live.__contains__, frame.abort.handles)
        super().take(pb.GenerateMultiplexedRequest(abort=frame.abort), stream, call)


@mutant("mux_handle_zero_is_not_aborted", kills="MUX-07")
class MuxHandleZeroIsNotAborted(Reference):
    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        frame.abort.handles[:] = filter(None, frame.abort.handles)
        super().take(frame, stream, call)


@mutant("mux_aborts_reach_other_streams", kills="MUX-07")
class MuxAbortsReachOtherStreams(Reference):
    """Where the same handle is live."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = list[Multiplex]()

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        if stream not in self.streams:
            self.streams.append(stream)
        super().take(frame, stream, call)
        for other in self.streams if frame.abort.handles else []:
            super().take(pb.GenerateMultiplexedRequest(abort=frame.abort), other, call)
