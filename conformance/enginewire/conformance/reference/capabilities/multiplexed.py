"""GenerateMultiplexed of the reference: many requests, one stream of frames."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.conformance.reference.call_metadata import fold
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.service import Answer, Call, Service
from enginewire.conformance.wire.tasks import stop

Requests = AsyncIterator[pb.GenerateMultiplexedRequest]
Frame = pb.GenerateMultiplexedResponse
NAME = "EngineService.GenerateMultiplexed"
ALL_CHOICES = -1


@dataclass(eq=False)
class Multiplex:
    """One stream: its live handles, and the events that nobody has sent yet."""

    live: dict[int, Job] = field(default_factory=dict)
    events: asyncio.Queue[pb.HandleEvent | Refusal | None] = field(default_factory=asyncio.Queue)
    pumps: list[asyncio.Task[None]] = field(default_factory=list)
    is_closing: bool = False

    def put(self, event: pb.HandleEvent) -> None:
        """Send an output, as soon as the reader takes it."""
        self.events.put_nowait(event)

    def end_if_done(self) -> None:
        """End the stream when nothing can come any more."""
        if self.is_closing and not self.live:
            self.events.put_nowait(None)


class Multiplexed(Service):
    """Serves GenerateMultiplexed."""

    def parts(self) -> dict[str, Answer]:
        """With GenerateMultiplexed."""
        return {**super().parts(), NAME: self.generate_multiplexed}

    async def generate_multiplexed(self, requests: Requests, call: Call) -> AsyncIterator[Frame]:
        """Read frames and send frames until both sides are done."""
        self.require("multiplexed")
        stream = Multiplex()
        await call.accept()
        reader = asyncio.ensure_future(self.read(requests, stream, call))
        try:
            async for frame in self.frames(stream):
                yield frame
        finally:
            await stop([reader, *stream.pumps])
            self.stream_ended(stream)

    def stream_ended(self, stream: Multiplex) -> None:
        """The stream is over, whatever ended it."""
        for job in stream.live.values():
            self.ended(job)

    async def read(self, requests: Requests, stream: Multiplex, call: Call) -> None:
        """What the client sends, until it half-closes."""
        try:
            async for frame in requests:
                self.take(frame, stream, call)
        except Refusal as refusal:
            stream.events.put_nowait(refusal)
        self.half_closed(stream)

    def half_closed(self, stream: Multiplex) -> None:
        """No more requests come."""
        stream.is_closing = True
        stream.end_if_done()

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        """Submits first, then aborts."""
        for submit in frame.submits:
            self.submit(stream, submit, call)
        for handle in frame.abort.handles:
            if handle in stream.live:
                self.abort(stream.live[handle])

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        """Start a request, or say on its handle why not."""
        if submit.handle in stream.live:
            raise invalid("submits.handle", "is live", submit.handle, "a handle that is not in use")
        try:
            job = self.submitted(submit, call)
        except Refusal as refusal:
            stream.events.put_nowait(pb.HandleEvent(handle=submit.handle, status=refusal.status()))
            return
        stream.live[submit.handle] = job
        self.say_accepted(stream, submit)
        stream.pumps.append(asyncio.ensure_future(self.pump(stream, submit.handle, job)))

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        """The job of a Submit, in the queue."""
        request = submit.generate
        self.check_state()
        fold(request, submit.metadata.items(), self.allows, self.number)
        self.validate(request)
        self.check_abort(request.request_id)
        job = self.job(request.request_id, request.request, self.deadline_of(submit, call))
        self.admit(job)
        return job

    def deadline_of(self, submit: pb.Submit, call: Call) -> float:
        """When the request has to have ended. Raises Refusal for no time at all."""
        if not submit.HasField("timeout"):
            return call.deadline
        seconds = submit.timeout.ToTimedelta().total_seconds()
        if seconds <= 0:
            raise invalid("submits.timeout", "is not positive", seconds, "more than 0 s")
        return min(call.deadline, time.monotonic() + seconds)

    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        """The retry boundary."""
        accepted = pb.Accepted(engine_lifetime_id=self.lifetime_id, request_id=submit.generate.request_id)
        stream.events.put_nowait(pb.HandleEvent(handle=submit.handle, accepted=accepted))

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        """Everything a job brings, as events."""
        try:
            async for output in self.outputs(job):
                for event in self.due_events(job):
                    stream.put(pb.HandleEvent(handle=handle, engine_event=event))
                if not job.request.stop_conditions.stop:
                    # Text that nobody asked for would make an event of every token.
                    output.ClearField("text")
                    output.ClearField("tokens")
                stream.put(pb.HandleEvent(handle=handle, output=output))
        except Refusal as refusal:
            stream.events.put_nowait(pb.HandleEvent(handle=handle, status=refusal.status()))
        del stream.live[handle]
        stream.end_if_done()

    async def frames(self, stream: Multiplex) -> AsyncIterator[Frame]:
        """What has gathered since the last frame, in frames that keep the order of each choice."""
        while True:
            gathered = [await stream.events.get()]
            while not stream.events.empty():
                gathered.append(stream.events.get_nowait())
            for frame in self.frames_of([event for event in gathered if isinstance(event, pb.HandleEvent)]):
                yield frame
            for event in gathered:
                if isinstance(event, Refusal):
                    raise event
            if None in gathered:
                return

    def frames_of(self, events: list[pb.HandleEvent]) -> Iterator[Frame]:
        """Plain tokens as rows, the rest as events; a row never comes behind an event of its choice."""
        frame, seen = Frame(step=self.counters.step), set[tuple[int, int]]()
        for event in events:
            choice, whole = (event.handle, event.output.index), (event.handle, ALL_CHOICES)
            if is_row(event) and not seen.isdisjoint((choice, whole)):
                yield frame
                frame, seen = Frame(step=self.counters.step), set()
            if is_row(event):
                add_row(frame, event)
            else:
                frame.events.append(event)
                if event.HasField("output"):
                    seen.add(choice)
                elif event.HasField("engine_event"):
                    seen.add(whole)
        if frame.handles or frame.events:
            yield frame


def is_row(event: pb.HandleEvent) -> bool:
    """True for an output that is nothing but tokens."""
    fields = {field.name for field, _ in event.output.ListFields()}
    return event.HasField("output") and fields <= {"token_ids", "first_output_position", "index"}


def add_row(frame: Frame, event: pb.HandleEvent) -> None:
    """Append an output to the columns of a frame."""
    output = event.output
    frame.handles.append(event.handle)
    frame.indexes.append(output.index)
    frame.token_counts.append(len(output.token_ids))
    frame.first_output_positions.append(output.first_output_position)
    frame.token_ids.extend(output.token_ids)
