"""Servers that tell too little, too much, too early or too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import invalid
from enginewire.conformance.reference.server import Reference

Events = list[pb.EngineEvent]


@mutant("events_never_sent", kills="EVT-01")
class EventsNeverSent(Reference):
    def answers(self, annotations: Iterable[str]) -> Events:
        return []


@mutant("mux_events_never_sent", kills="EVT-01/multiplexed")
class MuxEventsNeverSent(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        job.events.clear()
        await super().pump(stream, handle, job)


@mutant("events_unasked", kills="EVT-02")
class EventsUnasked(Reference):
    def answers(self, annotations: Iterable[str]) -> Events:
        # A list of its own for whoever asks for something.
        return super().answers(annotations) or [pb.EngineEvent(event=self.config.capabilities.annotations[0])]


@mutant("events_of_each_choice", kills="EVT-02/choices")
class EventsOfEachChoice(Reference):
    def due_events(self, job: Job) -> Events:
        return super().due_events(job) * len(job.choices)


@mutant("mux_events_of_each_choice", kills="EVT-02/choices")
class MuxEventsOfEachChoice(Reference):
    """With a name of each in the comment."""

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        job.events = [
            pb.EngineEvent(event=event.event, comment=[*event.comment, str(choice.index)])
            for choice in job.choices
            for event in job.events
        ]
        await super().pump(stream, handle, job)


@mutant("mux_events_unasked", kills="EVT-02/multiplexed")
class MuxEventsUnasked(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        job.events = job.events or [pb.EngineEvent(event="unasked")]
        await super().pump(stream, handle, job)


@mutant("events_named_like_the_annotation", kills="EVT-02", also="EVT-01/seen")
class EventsNamedLikeTheAnnotation(Reference):
    def answers(self, annotations: Iterable[str]) -> Events:
        asked = list(annotations)
        for event in (events := super().answers(asked)):
            event.event = next(each for each in asked if each.startswith(event.event))
        return events


@mutant("annotations_by_their_beginning", kills="EVT-02")
class AnnotationsByTheirBeginning(Reference):
    def answers(self, annotations: Iterable[str]) -> Events:
        known = self.config.capabilities.annotations
        asked = [next(filter(each.startswith, known), each) for each in annotations]
        return super().answers(dict.fromkeys(asked))


@mutant("mux_events_of_the_first_request", kills="EVT-01/again")
class MuxEventsOfTheFirstRequest(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        if "EVT-01" in job.request_id and handle > 1:
            job.events.clear()
        await super().pump(stream, handle, job)


@mutant("event_after_the_end", kills="EVT-03")
class EventAfterTheEnd(Reference):
    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        events = list(job.events)
        async for response in super().responses(job):
            yield response
        for event in events:
            yield pb.GenerateResponse(engine_event=event, request_id=job.request_id)


@mutant("mux_engine_event_after_the_end", kills="EVT-03/multiplexed", also="MUX-02/seen")
class MuxEngineEventAfterTheEnd(Reference):
    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        events = list(job.events)
        await super().pump(stream, handle, job)
        for event in events:
            stream.put(pb.HandleEvent(handle=handle, engine_event=event))


@mutant(
    "mux_event_before_acceptance",
    kills="EVT-03/multiplexed",
    also=("EVT-01/seen", "MUX-02/seen", "MUX-03/seen"),
)
class MuxEventBeforeAcceptance(Reference):
    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        if not submit.generate.request.annotations:
            super().say_accepted(stream, submit)

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        if job.request.annotations:
            for event in self.due_events(job):
                stream.put(pb.HandleEvent(handle=handle, engine_event=event))
            while not stream.events.empty():  # noqa: ASYNC110  # until it was sent in a frame of its own
                await asyncio.sleep(0.001)
            generate = pb.GenerateRequest(request_id=job.request_id)
            super().say_accepted(stream, pb.Submit(handle=handle, generate=generate))
        await super().pump(stream, handle, job)


@mutant("unknown_annotation_refused", kills="EVT-04")
class UnknownAnnotationRefused(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        super().validate(request)
        # Only there: other requirements ask for the same.
        if "EVT-04" in request.request_id and request.request.annotations:
            raise invalid("annotations", "is not known", "", "what is advertised")


@mutant("unknown_annotation_changes_the_answer", kills="EVT-04", also="INF-04/seen")
class UnknownAnnotationChangesTheAnswer(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        super().validate(request)
        if request.request.annotations:
            request.request.stop_conditions.max_tokens = 1


@mutant("events_with_every_token", kills="LIM-10/events", also="EVT-02/seen")
class EventsWithEveryToken(Reference):
    """Of requests of many choices."""

    def due_events(self, job: Job) -> Events:
        return self.answers(job.request.annotations) if len(job.choices) > 4 else super().due_events(job)


@mutant("events_of_aborted_waiters_come_last", kills="EVT-03/seen", traffic="ABO-05")
class EventsOfAbortedWaitersComeLast(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._due: dict[str, Events] = {}

    def abort(self, job: Job) -> None:
        if not job.is_running:
            self._due[job.request_id] = self.due_events(job)
        super().abort(job)

    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        async for response in super().responses(job):
            yield response
        for event in self._due.pop(job.request_id, []):
            yield pb.GenerateResponse(engine_event=event, request_id=job.request_id)
