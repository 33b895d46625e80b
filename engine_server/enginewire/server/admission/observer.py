"""Who is told of requests and steps: metrics, traces, or nobody. Knows nothing about what they make of it."""

from __future__ import annotations

from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.server.admission.live import Accepted, Failed, Live
from enginewire.server.admission.origin import Origin
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError


class Observer:
    """Told of every request and of every step; this one takes no note."""

    def accepted(self, context: GenerateContext, request: Accepted) -> None:
        """A request is in the engine."""

    def refused(self, request_id: str, request: Accepted, origin: Origin, why: EngineError) -> None:
        """A request was not let in."""

    def step(self, outputs: StepOutputs) -> None:
        """What one step produced, before it is delivered."""

    def slow(self) -> None:
        """A reader was given up. The end of its request, which is aborted, is still to come."""

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """A request has ended, and so have those of its choices that had no terminal output."""


class Several(Observer):
    """Tells others, in order."""

    def __init__(self, others: Sequence[Observer]) -> None:
        self._others = others

    def accepted(self, context: GenerateContext, request: Accepted) -> None:
        """See Observer."""
        for other in self._others:
            other.accepted(context, request)

    def refused(self, request_id: str, request: Accepted, origin: Origin, why: EngineError) -> None:
        """See Observer."""
        for other in self._others:
            other.refused(request_id, request, origin, why)

    def step(self, outputs: StepOutputs) -> None:
        """See Observer."""
        for other in self._others:
            other.step(outputs)

    def slow(self) -> None:
        """See Observer."""
        for other in self._others:
            other.slow()

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """See Observer."""
        for other in self._others:
            other.ended(live, usage, failed)


class Admission:
    """A request is let in inside of it: an EngineError there is a refusal."""

    __slots__ = ("_asked", "_observer", "_origin")

    def __init__(
        self, observer: Observer, asked: pb.GenerateRequest | pb.EmbedRequest, origin: Origin
    ) -> None:
        self._observer, self._asked, self._origin = observer, asked, origin

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, EngineError):
            self._observer.refused(self._asked.request_id, self._asked.request, self._origin, error)
