"""A recorded multiplexed stream taken apart: what each use of each handle got, as an answer of its own.

Which use something belongs to follows from the times at which requests were sent. Judges nothing; a frame
that cannot be read ends the reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import CODES, Answer, Failure
from enginewire.conformance.wire.exchange import Arrived, Exchange, detail_of
from enginewire.conformance.wire.multiplexed import NAME, rows_of
from enginewire.conformance.wire.violation import Violation


@dataclass(slots=True)
class Use:
    """One use of a handle. `finished`: the choices that had their terminals. `timeout`: None without one."""

    answer: Answer
    begins_at: float
    timeout: float | None = None
    status: pb.Status | None = None
    failed_at: float = 0.0
    """When its status came."""
    finished: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        finished = {choice.index for choice in self.answer.resumed.values() if choice.finished}
        # With nothing left to do there is no end but a refusal.
        if len(finished) < self.answer.count:
            self.finished |= finished

    @property
    def has_begun(self) -> bool:
        """Something of it came."""
        return bool(self.answer.accepted or self.answer.parts or self.status is not None)

    @property
    def has_ended(self) -> bool:
        """A status, or the last terminal of its choices."""
        return self.status is not None or len(self.finished) >= self.answer.count


@dataclass(slots=True)
class Handles:
    """All uses of all handles of one stream, in the order of their requests."""

    exchange: Exchange
    uses: dict[int, list[Use]] = field(default_factory=dict)
    unknown: list[int] = field(default_factory=list)
    """Handles that a frame names and no request used."""
    unreadable: Violation | None = None
    """Why a frame cannot be read."""

    def all(self) -> Iterator[Use]:
        """Every use."""
        return (use for uses in self.uses.values() for use in uses)

    def at(self, handle: int, when: float, *, begins: bool) -> Use | None:
        """The use that something belongs to. `begins`: it may be the first thing of the next one."""
        begun = fresh = None
        for use in self.uses.get(handle, ()):
            if use.begins_at <= when and use.has_begun:
                begun = use
            elif use.begins_at <= when:
                fresh = fresh or use
        if begun and not begun.has_ended:
            return begun
        return fresh if fresh and (begins or not begun) else begun


def handles_of(exchange: Exchange, config: pb.EngineConfig) -> Handles:
    """Everything that came over one stream, by handle; nothing where a request is no message."""
    handles = Handles(exchange)
    for sent in exchange.sent:
        if isinstance(sent.message, pb.GenerateMultiplexedRequest):
            for submit in sent.message.submits:
                answer = Answer(exchange, submit.generate, config, is_multiplexed=True)
                timeout = submit.timeout.ToNanoseconds() / 1e9 if submit.HasField("timeout") else None
                handles.uses.setdefault(submit.handle, []).append(Use(answer, sent.at, timeout))
    for arrived in exchange.arrived:
        try:
            _take(handles, arrived)
        except Violation as unreadable:
            handles.unreadable = unreadable
            break
    return handles


def answers_of(handles: Handles) -> Iterator[Answer]:
    """The answer of each use, with its end where it was seen."""
    for use in handles.all():
        if use.status is not None:
            use.answer.code = CODES.get(use.status.code, grpc.StatusCode.UNKNOWN)
            use.answer.detail = detail_of(use.status)
        elif use.has_ended:
            use.answer.code = grpc.StatusCode.OK
        yield use.answer


def failures_of(handles: Handles) -> Iterator[Failure]:
    """The status of each handle that failed."""
    for use in handles.all():
        if use.status is not None:
            code = CODES.get(use.status.code, grpc.StatusCode.UNKNOWN)
            yield Failure(handles.exchange, code, use.status.message, use.status, is_event=True)


def is_multiplexed(exchange: Exchange) -> bool:
    """True for a stream of frames."""
    return exchange.method == NAME


def _take(handles: Handles, arrived: Arrived) -> None:
    frame = arrived.message
    assert isinstance(frame, pb.GenerateMultiplexedResponse)
    accepted = {event.handle for event in frame.events if event.HasField("accepted")}
    for handle, output in rows_of(frame):
        _part(handles, handle, output, arrived.at, handle in accepted)
    for event in frame.events:
        kind = event.WhichOneof("event")
        if kind == "output":
            _part(handles, event.handle, event.output, arrived.at, False)
        elif kind == "engine_event":
            _part(handles, event.handle, event.engine_event, arrived.at, event.handle in accepted)
        else:
            _milestone(handles, event, arrived.at)


def _part(
    handles: Handles,
    handle: int,
    part: pb.LLMEngineOutput | pb.EngineEvent,
    when: float,
    is_accepted_here: bool,
) -> None:
    use = handles.at(handle, when, begins=is_accepted_here)
    if use is None:
        handles.unknown.append(handle)
    elif use.has_ended:
        use.answer.late.append(part)
    else:
        answer = use.answer
        answer.is_early = answer.is_early or not (answer.accepted or is_accepted_here)
        answer.parts.append(part)
        if isinstance(part, pb.LLMEngineOutput) and part.finish_reason:
            use.finished.add(part.index)


def _milestone(handles: Handles, event: pb.HandleEvent, when: float) -> None:
    """An Accepted or a status: either may be the first thing of a use."""
    use = handles.at(event.handle, when, begins=True)
    if use is None:
        handles.unknown.append(event.handle)
    elif use.has_ended:
        use.answer.late.append(event)
    elif event.HasField("accepted"):
        use.answer.accepted.append(event.accepted)
    elif event.HasField("status"):
        use.status, use.failed_at = event.status, when
