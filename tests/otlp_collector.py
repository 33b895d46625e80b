"""A collector of traces: OTLP over gRPC, as OpenTelemetry's own collectors take it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.patience import PATIENCE_SECONDS


@dataclass(frozen=True)
class Found:
    """A span as it arrived. `begin` and `end` are in nanoseconds since 1970."""

    service: str
    span: trace_pb2.Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def span_id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent_id(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def links(self) -> list[str]:
        return [link.span_id.hex() for link in self.span.links]

    @property
    def attributes(self) -> dict[str, object]:
        return {pair.key: _value(pair.value) for pair in self.span.attributes}

    @property
    def begin(self) -> int:
        return self.span.start_time_unix_nano

    @property
    def end(self) -> int:
        return self.span.end_time_unix_nano


class Collector(TraceServiceServicer):
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.metadata: list[tuple[str, str]] = []
        self._spans: list[Found] = []
        self._arrived = threading.Condition(threading.RLock())

    def Export(  # noqa: N802
        self, request: messages.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> messages.ExportTraceServiceResponse:
        with self._arrived:
            self.metadata = list(context.invocation_metadata())
            for of_resource in request.resource_spans:
                named = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
                for of_scope in of_resource.scope_spans:
                    self._spans += [Found(named["service.name"], span) for span in of_scope.spans]
            self._arrived.notify_all()
        return messages.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[Found]:
        """The spans of one trace that have arrived, in the order of their beginnings."""
        with self._arrived:
            return sorted((each for each in self._spans if each.trace_id == trace_id), key=lambda s: s.begin)

    def wait(self, trace_id: str, is_whole: Callable[[list[Found]], bool]) -> list[Found]:
        """The spans of one trace, once they are whole."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._arrived:
            while not is_whole(found := self.of(trace_id)):
                assert self._arrived.wait(deadline - time.monotonic()), [each.name for each in found]
            return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector at a free port of loopback."""
    collector, server = Collector(), grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _value(value: object) -> object:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(each) for each in found.values] if kind == "array_value" else found
