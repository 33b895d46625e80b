"""Servers that confuse what is asked under one handle, or on one stream, with what was asked before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Frame, Multiplex, is_row
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call


@mutant("live_handles_are_refused_as_requests", kills="MUX-05", also="MUX-02/seen")
class LiveHandlesAreRefusedAsRequests(Reference):
    """As long as their own request has no token."""

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        live = stream.live.get(submit.handle)
        if live is None or live.completion_tokens:
            super().submit(stream, submit, call)
            return
        refusal = Refusal(pb.ERROR_REASON_INVALID_REQUEST, "submits.handle: is live", field="submits.handle")
        stream.events.put_nowait(pb.HandleEvent(handle=submit.handle, status=refusal.status()))


@mutant("live_handles_are_looked_at_last", kills="MUX-05", also=("MUX-02/seen", "MUX-03/seen"))
class LiveHandlesAreLookedAtLast(Reference):
    """When everything else about a request is right."""

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        try:
            self.validate(submit.generate)
        except Refusal as refusal:
            stream.events.put_nowait(pb.HandleEvent(handle=submit.handle, status=refusal.status()))
            return
        super().submit(stream, submit, call)


@mutant("aborts_wait_for_their_handle", kills="MUX-07")
class AbortsWaitForTheirHandle(Reference):
    """That of a handle which is not live ends its next request."""

    def __init__(self) -> None:
        super().__init__()
        self.due: set[tuple[Call, int]] = set()

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        super().take(frame, stream, call)
        for handle in {submit.handle for submit in frame.submits}:
            if (call, handle) in self.due and handle in stream.live:
                self.due.remove((call, handle))
                self.abort(stream.live[handle])
        self.due |= {(call, handle) for handle in frame.abort.handles if handle not in stream.live}


@mutant("handles_name_ids_for_ever", kills="MUX-07")
class HandlesNameIdsForEver(Reference):
    """An abort ends whoever has the id by now."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[tuple[Call, int], str] = {}

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        self.ids.update({(call, submit.handle): submit.generate.request_id for submit in frame.submits})
        super().take(frame, stream, call)
        for handle in frame.abort.handles:
            if job := self.live.get(self.ids.get((call, handle), "")):
                self.abort(job)


@mutant("requests_are_accepted_before_there_is_room", kills="MUX-03/seen", traffic="MUX-04/without-room")
class RequestsAreAcceptedBeforeThereIsRoom(Reference):
    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        if len(self.waiting) >= self.settings.max_queued:
            self.say_accepted(stream, submit)
        super().submit(stream, submit, call)


@mutant("streams_outlive_their_half_close", kills="MUX-09")
class StreamsOutliveTheirHalfClose(Reference):
    """Whoever wants no more is not waited for, it thinks, and does not look whether he is there."""

    def stream_ended(self, stream: Multiplex) -> None:
        if not (stream.is_closing and any("MUX-09" in job.request_id for job in stream.live.values())):
            super().stream_ended(stream)


@mutant("timeouts_are_of_the_frame", kills="MUX-12")
class TimeoutsAreOfTheFrame(Reference):
    """A request without one gets that of the request before it."""

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        before = None
        for submit in frame.submits:
            if before is not None and not submit.HasField("timeout"):
                submit.timeout.CopyFrom(before)
            before = submit.timeout if submit.HasField("timeout") else before
        super().take(frame, stream, call)


@mutant("outputs_with_a_prompt_hold_nothing_back", kills="MUX-11", also=("LOG-07/seen", "STR-06/seen"))
class OutputsWithAPromptHoldNothingBack(Reference):
    """Tokens that come later are rows of their frame."""

    def frames_of(self, events: list[pb.HandleEvent]) -> Iterator[Frame]:
        yield from super().frames_of(sorted(events, key=_place))


def _place(event: pb.HandleEvent) -> int:
    if event.output.finish_reason or event.HasField("status"):
        return 2
    is_late = event.output.HasField("prompt_logprobs") and not event.output.HasField("logprobs")
    return 1 if is_late else 0


@mutant("events_are_of_the_first_choice", kills="EVT-03/order")
class EventsAreOfTheFirstChoice(Reference):
    """Rows of the others do not wait for them."""

    def frames_of(self, events: list[pb.HandleEvent]) -> Iterator[Frame]:
        yield from super().frames_of(
            sorted(events, key=lambda event: not (is_row(event) and event.output.index))
        )


@mutant("fields_of_submits_have_another_path", kills="MUX-04")
class FieldsOfSubmitsHaveAnotherPath(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        try:
            return super().submitted(submit, call)
        except Refusal as refusal:
            if refusal.detail.field:
                refusal.detail.field = f"generate.request.{refusal.detail.field}"
            raise


@mutant("timeouts_have_whole_seconds", kills="MUX-12/used-again")
class TimeoutsHaveWholeSeconds(Reference):
    def deadline_of(self, submit: pb.Submit, call: Call) -> float:
        if submit.timeout.seconds:
            submit.timeout.nanos = 0
        return super().deadline_of(submit, call)


@mutant("timeouts_stay_with_their_handle", kills="MUX-12/used-again")
class TimeoutsStayWithTheirHandle(Reference):
    """Whoever has none gets that of the request before."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines: dict[tuple[Call, int], float] = {}

    def deadline_of(self, submit: pb.Submit, call: Call) -> float:
        if submit.HasField("timeout"):
            self.deadlines[call, submit.handle] = super().deadline_of(submit, call)
        return self.deadlines.get((call, submit.handle), call.deadline)


@mutant("metadata_of_submits_stays", kills="MDT-05/multiplexed")
class MetadataOfSubmitsStays(Reference):
    """For all later ones of their stream."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[Call, dict[str, str]] = {}

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        kept = self.metadata.setdefault(call, {})
        kept.update(submit.metadata)
        submit.metadata.update(kept)
        return super().submitted(submit, call)


@mutant("annotations_are_those_of_the_stream", kills="EVT-02/multiplexed")
class AnnotationsAreThoseOfTheStream(Reference):
    """What one request asks for is told to all later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[Call, list[str]] = {}

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        own, asked = submit.generate.request.annotations, self.asked.setdefault(call, [])
        asked += own
        own[:] = asked
        return super().submitted(submit, call)


@mutant("few_annotations_are_read", kills="EVT-01/behind-others")
class FewAnnotationsAreRead(Reference):
    def answers(self, annotations: Iterable[str]) -> list[pb.EngineEvent]:
        return super().answers(list(annotations)[:16])


@mutant("who_goes_on_gets_no_events", kills="EVT-01/behind-others")
class WhoGoesOnGetsNoEvents(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = float("inf")) -> Job:
        job = super().job(request_id, request, deadline)
        if request.HasField("resume"):
            job.events.clear()
        return job


@mutant("events_come_with_the_second_token", kills="EVT-01/behind-others", also="EVT-01/seen")
class EventsComeWithTheSecondToken(Reference):
    def due_events(self, job: Job) -> list[pb.EngineEvent]:
        return super().due_events(job) if job.completion_tokens != 1 else []


@mutant("a_request_without_room_ends_its_stream", kills="MUX-04/seen", traffic="MUX-04/without-room")
class ARequestWithoutRoomEndsItsStream(Reference):
    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        self._full: Refusal | None = None
        super().submit(stream, submit, call)
        if self._full:
            raise self._full

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        try:
            return super().submitted(submit, call)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL:
                self._full = refusal
            raise
