"""What a method of the reference is about: a request of its arguments, or what the server is busy with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call


@dataclass(frozen=True, slots=True)
class Subject:
    """One request at a server; `job` once it was admitted, `choice` where one of its choices goes on."""

    server: Reference
    request: pb.PreprocessedRequest
    job: Job | None = None
    choice: Choice | None = None
    is_multiplexed: bool = False


class KnowsItsSubject(Reference):
    """A reference that can tell what it is about to do, and for whom."""

    def __init__(self) -> None:
        self.is_made = False
        self._now: list[Subject] = []
        self._multiplexed: set[str] = set()
        super().__init__()
        self.is_made = True

    def validate(self, request: pb.GenerateRequest) -> None:
        """For the request that comes in."""
        with self._busy_with(self._of_request(request.request)):
            super().validate(request)

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        """For the choice that goes on."""
        with self._busy_with(self._of_job(choice.job, choice)):
            return super().advance(choice)

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        """For a request of a stream."""
        self._multiplexed.add(submit.generate.request_id)
        subject = Subject(self, submit.generate.request, is_multiplexed=True)
        with self._busy_with(subject):
            return super().submitted(submit, call)

    def subjects(self, given: tuple[object, ...]) -> list[Subject]:
        """Those of the arguments; without, the one it is busy with, or all that are live."""
        named = [subject for one in given if (subject := self._of(one))]
        return named or self._now[-1:] or [self._of_job(job) for job in self.live.values()]

    def _of(self, given: object) -> Subject | None:
        match given:
            case Choice():
                return self._of_job(given.job, given)
            case Job():
                return self._of_job(given)
            case pb.PreprocessedRequest():
                return self._of_request(given)
            case pb.GenerateRequest():
                return self._of_request(given.request)
            case pb.Submit():
                return Subject(self, given.generate.request, is_multiplexed=True)
            case str() if given in self.live:
                return self._of_job(self.live[given])
        return None

    def _of_job(self, job: Job, choice: Choice | None = None) -> Subject:
        return Subject(self, job.request, job, choice, job.request_id in self._multiplexed)

    def _of_request(self, request: pb.PreprocessedRequest) -> Subject:
        is_multiplexed = any(subject.is_multiplexed for subject in self._now)
        return Subject(self, request, is_multiplexed=is_multiplexed)

    @contextmanager
    def _busy_with(self, subject: Subject) -> Iterator[None]:
        self._now.append(subject)
        try:
            yield
        finally:
            self._now.pop()
