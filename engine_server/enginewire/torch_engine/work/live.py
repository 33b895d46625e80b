"""The requests that have not ended: how they start, and what every end frees.

Knows nothing about what they compute or about batches.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import EngineError, InvalidRequest
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.runner.statistics import Counters
from enginewire.torch_engine.scheduling.scheduler import Scheduler
from enginewire.torch_engine.work.outbox import Outbox


class LiveRequests:
    """Each from `start` until the last of its sequences has ended."""

    def __init__(self, scheduler: Scheduler, outbox: Outbox, counters: Counters) -> None:
        self.scheduler = scheduler
        self.outbox = outbox
        self.counters = counters
        self._requests: dict[GenerateContext, Request] = {}

    @property
    def contexts(self) -> list[GenerateContext]:
        """Of all of them."""
        return list(self._requests)

    def start(self, request: Request) -> None:
        """Queue a request. A choice that a resumed part has already completed ends at once."""
        self.counters.requests_added += 1
        self._requests[request.context] = request
        self.scheduler.add(request)
        if not all(sequence.start_matching() for sequence in request.unfinished):
            field = "resume.choices.generated_token_ids"
            self.fail(request, InvalidRequest(f"{field}: must follow the grammar", field=field))
        if request.context.is_cancelled:  # while its grammar was compiled
            self.abort(request.context)
        for sequence in request.unfinished:
            finish = sequence.finish()
            if finish:
                self.end(sequence)
                self.outbox.end(sequence, finish)

    def end(self, sequence: Sequence) -> None:
        """Free what a sequence holds; with its last one a request is over."""
        self.scheduler.release(sequence)
        if not sequence.request.unfinished:
            del self._requests[sequence.request.context]
            self.counters.requests_finished += 1

    def end_all(self, request: Request) -> None:
        """`end` for every sequence of a request."""
        for sequence in request.unfinished:
            self.end(sequence)

    def fail(self, request: Request, error: EngineError) -> None:
        """End a whole request with a failure."""
        self.end_all(request)
        self.outbox.failure(request.context, error)

    def reject(self, request: Request, error: EngineError) -> None:
        """Fail a request that was never started."""
        request.forget_handed_over()
        self.counters.requests_added += 1
        self.counters.requests_finished += 1
        self.outbox.failure(request.context, error)

    def abort(self, context: GenerateContext) -> None:
        """End every unfinished choice as cancelled. Unknown and finished requests are ignored."""
        request = self._requests.get(context)
        if request:
            request.work.cancel()

    def abort_each(self, contexts: Iterable[GenerateContext]) -> None:
        """`abort` of every one of them."""
        for context in contexts:
            self.abort(context)

    def hand_back_waiting(self, error: EngineError) -> None:
        """Fail the requests that wait and have produced nothing; the others go on."""
        waiting = set(self.scheduler.waiting)
        for request in list(self._requests.values()):
            if request.is_fresh and waiting.issuperset(request.unfinished):
                self.fail(request, error)
