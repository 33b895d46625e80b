"""Servers that confuse what is asked under one handle, or on one stream, with what was asked before."""

from __future__ import annotations

from collections.abc import Iterable

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
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
