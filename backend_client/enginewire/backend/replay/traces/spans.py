"""Spans for the requests of a backend: one for each, and below it one for each engine that it is sent to.

Needs opentelemetry, and is imported only where traces are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure
from enginewire.backend.replay.traces.trace import Asked, Sent, Trace, Tracing
from enginewire.metrics.labels import reason_name
from enginewire.tracing import attributes as named
from enginewire.tracing.exporting import context_of, headers_of, links_to
from enginewire.tracing.trace_context import TRACEPARENT, TRACESTATE, passed_on

FACE: Final = "enginewire.face"


class SentSpan(Sent):
    """`backend.attempt`, or `backend.prefill`: from sending to the last that this engine says."""

    __slots__ = ("_span",)

    def __init__(self, span: Span, metadata: Mapping[str, str]) -> None:
        super().__init__(metadata)
        self._span = span

    def end(self, failure: Failure | None = None) -> None:
        """See Sent. A span that has ended takes nothing more."""
        if self._span.is_recording():
            if failure is not None:
                fail(self._span, failure)
            self._span.end()


class TraceSpan(Trace):
    """`backend.generate`, or `backend.embed`."""

    def __init__(self, tracer: Tracer, span: Span, metadata: Mapping[str, str] | None) -> None:
        super().__init__(metadata)
        self._tracer, self._span = tracer, span
        left_out = (TRACEPARENT, TRACESTATE)
        self._rest = {key: value for key, value in (metadata or {}).items() if key not in left_out}

    def send(self, target: str, after: Sent, *, is_prefill: bool = False) -> Sent:
        """See Trace. What was sent before is over, and linked to."""
        after.end()
        span = self._tracer.start_span(
            "backend.prefill" if is_prefill else "backend.attempt",
            otel.set_span_in_context(self._span),
            SpanKind.CLIENT,
            named.address_of(target),
            links_to(passed_on(after.metadata or {})),
        )
        return SentSpan(span, {**self._rest, **headers_of(span)})

    def end(
        self, request_id: str, num_prompt_tokens: int, num_tokens: int, outcome: str, ttft: float | None
    ) -> None:
        """See Trace."""
        span = self._span
        span.set_attribute(named.RESPONSE_ID, request_id)
        span.set_attribute(named.INPUT_TOKENS, num_prompt_tokens)
        span.set_attribute(named.OUTPUT_TOKENS, num_tokens)
        if outcome:
            span.set_attribute(named.FINISH_REASONS, outcome.split(", "))
        if ttft is not None:
            span.set_attribute(named.TIME_TO_FIRST_CHUNK, round(ttft, 6))
        span.end()

    def fail(self, failure: Failure) -> None:
        """See Trace."""
        fail(self._span, failure)


class SpanTracing(Tracing):
    """Makes spans with a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, metadata: Mapping[str, str] | None, request: Asked, face: str = "") -> Trace:
        """See Tracing."""
        attributes = named.attributes_of(request)
        if face:
            attributes[FACE] = face
        is_generation = isinstance(request, pb.PreprocessedRequest)
        span = self._tracer.start_span(
            "backend.generate" if is_generation else "backend.embed",
            context_of(metadata or {}),
            SpanKind.SERVER,
            attributes,
        )
        return TraceSpan(self._tracer, span, metadata)


def fail(span: Span, failure: Failure) -> None:
    """Why, in the contract's words: the message of a failure may quote its request."""
    span.set_attribute(named.ERROR_TYPE, reason_name(failure.reason))
    span.set_status(Status(StatusCode.ERROR))
