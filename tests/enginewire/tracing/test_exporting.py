"""Spans on their way to a collector: one that takes them, one that is away, one that never answers."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from enginewire.tracing import exporting
from enginewire.tracing.exporting import SpanExport, context_of, headers_of, links_to
from tests.enginewire.tracing.test_trace_context import SPAN, TRACE, VALID
from tests.otlp_collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


async def test_spans_arrive_with_what_the_environment_says(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-tenant=me")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "another")
    export = SpanExport(collector.endpoint, "enginewire-engine", "id")
    with export.tracer.start_as_current_span(
        "outer", context_of({"traceparent": VALID, "tracestate": "a=1"})
    ):
        # Whatever else runs in a task is no parent of a request.
        export.tracer.start_span("inner", context_of({})).end()
    await export.close()
    (outer,) = collector.of(TRACE)
    assert (outer.service, outer.parent_id, outer.span.trace_state) == ("another", SPAN, "a=1")
    assert ("x-tenant", "me") in collector.metadata


async def test_the_caller_decides_about_sampling(collector: Collector) -> None:
    export = SpanExport(collector.endpoint, "enginewire-engine")
    span = export.tracer.start_span("unwanted", context_of({"traceparent": VALID[:-2] + "00"}))
    assert not span.is_recording()
    assert headers_of(span)["traceparent"].startswith(f"00-{TRACE}-")
    assert headers_of(span)["traceparent"].endswith("-00")
    span.end()
    await export.close()
    assert collector.of(TRACE) == []


@pytest.mark.parametrize("is_listening", [False, True])
async def test_a_collector_that_takes_nothing_holds_up_nothing(
    is_listening: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More spans than there is room for are dropped, and the end of the server does not wait for the rest."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr(exporting, "FLUSH_SECONDS", 0.05)
    caplog.set_level(logging.CRITICAL)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if is_listening:
            silent.listen()
        export = SpanExport(f"http://127.0.0.1:{silent.getsockname()[1]}", "enginewire-engine")
        for _ in range(100):
            export.tracer.start_span("lost").end()
        await export.close()


def test_links_point_at_what_is_there() -> None:
    (link,) = links_to({"traceparent": VALID})
    assert f"{link.context.span_id:016x}" == SPAN
    assert links_to({}) == links_to({"traceparent": "garbage"}) == []
