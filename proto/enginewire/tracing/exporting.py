"""The way of spans out of this process: OpenTelemetry's SDK, and its exporter over gRPC or HTTP.

A collector that is slow or away holds up nothing: spans wait in a bounded queue, and are dropped when it is
full. What the variables of OpenTelemetry say about sampling, batches, headers or TLS is for its SDK to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from enginewire.tracing.options import HTTP, otlp_protocol
from enginewire.version import __version__

# What the end of a server may take for its last spans.
FLUSH_SECONDS: Final = 2.0
NOBODY: Final = Context()
_W3C: Final = TraceContextTextMapPropagator()


class SpanExport:
    """Spans that are made with `tracer` go to a collector, until `close`."""

    def __init__(self, endpoint: str, service: str, instance_id: str = "") -> None:
        """`service` is the name of this program, unless the environment has another one."""
        self._exporter = _exporter(endpoint)
        # Not on the exit of the interpreter, where it would wait for a collector that is away.
        provider = TracerProvider(resource=_resource(service, instance_id), shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(self._exporter)
        provider.add_span_processor(self._processor)
        self.tracer = provider.get_tracer("enginewire", __version__)

    async def close(self) -> None:
        """Send what is left, for two seconds at most."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]  # it has no annotation
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # A daemon: one that still waits for the collector must not hold up the end of the process.
        threading.Thread(target=flush, daemon=True, name="last spans").start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            threading.Thread(target=self._exporter.shutdown, daemon=True, name="end of spans").start()


def context_of(headers: Mapping[str, str]) -> Context:
    """The parent that a request names; none where it names none, whatever else runs in this task."""
    return _W3C.extract(headers, NOBODY)


def headers_of(span: trace.Span) -> dict[str, str]:
    """What makes this span the parent of what is sent with it."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, trace.set_span_in_context(span, NOBODY))
    return headers


def links_to(headers: Mapping[str, str]) -> list[trace.Link]:
    """A link to the span in these headers, if there is one."""
    span = trace.get_current_span(context_of(headers)).get_span_context()
    return [trace.Link(span)] if span.is_valid else []


def _exporter(endpoint: str) -> SpanExporter:
    if otlp_protocol() == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)


def _resource(service: str, instance_id: str) -> Resource:
    ours = {"service.name": service, "service.version": __version__}
    if instance_id:
        ours["service.instance.id"] = instance_id
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})
