"""The spans of requests in an engine: how long each waited, computed its prompt and generated.

Cut once, at the end of a request, from what the table knows of it; on the way a step costs one look at who
has its first token. Needs opentelemetry, and is imported only where traces are sent. Knows nothing about
gRPC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from enginewire import v1 as pb
from enginewire.metrics.labels import FINISHED, reason_name
from enginewire.server.admission.live import Accepted, Failed, Live
from enginewire.server.admission.observer import Observer
from enginewire.server.admission.origin import Origin
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError
from enginewire.tracing import attributes as named
from enginewire.tracing.exporting import context_of, headers_of, links_to
from enginewire.tracing.trace_context import headers_of_link

NS_PER_SECOND: Final = 1_000_000_000


class LiveSpan:
    """The span of one live request. Times are those of time.monotonic, in seconds."""

    __slots__ = ("_epoch", "accepted_at", "finish_reasons", "first_token_at", "span")

    def __init__(self, span: Span, accepted_at: float, epoch: int) -> None:
        """`epoch` is when the monotonic clock was 0, in nanoseconds since 1970."""
        self.span = span
        self.accepted_at = accepted_at
        self.first_token_at: float | None = None
        self.finish_reasons: list[str] = []
        self._epoch = epoch

    def wall(self, at: float) -> int:
        """In nanoseconds since 1970."""
        return self._epoch + int(at * NS_PER_SECOND)


class RequestSpans(Observer):
    """Makes `engine.generate` of each request that the sampler wants, and its parts."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = ""
        self._clock = clock
        self._tracer = tracer
        self._live: dict[GenerateContext, LiveSpan] = {}
        self._unanswered: set[GenerateContext] = set()
        # Some engines do not tell when they begin to compute a request.
        self._knows_begin = False

    def accepted(self, context: GenerateContext, request: Accepted) -> None:
        """A request is in the engine: its span has begun, and is the parent of what the engine sends on."""
        now, wall = self._clock(), time.time_ns()
        span = self._begin(context.request_id, request, context.trace, wall)
        context.trace = headers_of(span)
        if span.is_recording():
            self._live[context] = LiveSpan(span, now, wall - int(now * NS_PER_SECOND))
            self._unanswered.add(context)

    def refused(self, request_id: str, request: Accepted, origin: Origin, why: EngineError) -> None:
        """A span without a length."""
        wall = time.time_ns()
        span = self._begin(request_id, request, origin.trace, wall)
        _fail(span, reason_name(why.reason))
        span.end(wall)

    def step(self, outputs: StepOutputs) -> None:
        """Note who has its first token, and how choices ended."""
        if not self._live:
            return
        now = self._clock()
        for context in self._unanswered.intersection(outputs.contexts):
            self._take_first(context, now)
        for context, output in outputs.outputs:
            if context in self._unanswered and output.token_ids:
                self._take_first(context, now)
            if output.finish_reason and (live := self._live.get(context)) is not None:
                live.finish_reasons.append(FINISHED.get(output.finish_reason, "error"))

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """A request has ended: its parts are cut, and all of it is sent."""
        context = live.context
        spans = self._live.pop(context, None)
        if spans is None:
            return
        self._unanswered.discard(context)
        end = self._clock()
        self._cut(spans, context.running_since, end)
        _tell(spans, usage)
        if failed is not None:
            _fail(spans.span, reason_name(failed))
        spans.span.end(spans.wall(end))

    def _begin(self, request_id: str, request: Accepted, parent: Mapping[str, str], wall: int) -> Span:
        name, links = "engine.embed", list[Link]()
        if isinstance(request, pb.PreprocessedRequest):
            name, links = "engine.generate", links_to(headers_of_link(request.migration_link))
        attributes = named.attributes_of(request)
        attributes[named.RESPONSE_ID] = request_id
        if self.model:
            attributes[named.RESPONSE_MODEL] = self.model
        return self._tracer.start_span(name, context_of(parent), SpanKind.SERVER, attributes, links, wall)

    def _take_first(self, context: GenerateContext, now: float) -> None:
        self._unanswered.discard(context)
        notified = context.first_token_at
        self._live[context].first_token_at = now if notified is None else min(notified, now)

    def _cut(self, spans: LiveSpan, began: float | None, end: float) -> None:
        """The parts that are known: an engine may not tell when it began."""
        first, self._knows_begin = spans.first_token_at, self._knows_begin or began is not None
        if self._knows_begin:
            self._part("engine.queue", spans, spans.accepted_at, end if began is None else began)
        if began is not None:
            self._part("engine.prefill", spans, began, end if first is None else first)
        if first is not None:
            self._part("engine.decode", spans, first, end)

    def _part(self, name: str, spans: LiveSpan, begin: float, end: float) -> None:
        # A thread may begin with a request before the loop has noted that it is accepted.
        begin = max(begin, spans.accepted_at)
        parent = trace.set_span_in_context(spans.span)
        part = self._tracer.start_span(name, parent, start_time=spans.wall(begin))
        part.end(spans.wall(max(begin, end)))


def _tell(spans: LiveSpan, usage: pb.CompletionUsage) -> None:
    """What became of a request."""
    span, first = spans.span, spans.first_token_at
    if spans.finish_reasons:
        span.set_attribute(named.FINISH_REASONS, spans.finish_reasons)
    if first is not None:
        span.set_attribute(named.TIME_TO_FIRST_CHUNK, round(max(first - spans.accepted_at, 0.0), 6))
    if usage.prompt_tokens:
        span.set_attribute(named.INPUT_TOKENS, usage.prompt_tokens)
        span.set_attribute(named.OUTPUT_TOKENS, usage.completion_tokens)
        span.set_attribute(named.CACHED_TOKENS, usage.prompt_tokens_details.cached_tokens)


def _fail(span: Span, reason: str) -> None:
    """Why, in the contract's words: the message of a failure may quote its request."""
    span.set_attribute(named.ERROR_TYPE, reason)
    span.set_status(Status(StatusCode.ERROR))
