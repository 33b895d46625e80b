"""A collector of spans, as the exporters of OpenTelemetry see one: OTLP over gRPC. Judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError

from enginewire.conformance.wire.foreign import otlp
from enginewire.grpc_server import bare_server

STOP_SECONDS: Final = 0.2
MOST_SPANS: Final = 100_000
"""Those that come later are not kept."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span; ids in hex, times in ns, `said` every text and number in it."""

    trace_id: str
    span_id: str
    parent_id: str
    state: str
    name: str
    begin: int
    end: int
    said: tuple[str, ...]


class Collector:
    """Takes spans at an address. Open it with `Collector.open`."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Span] = []
        self.num_held = 0
        """Exports that wait for an answer."""
        self._news = asyncio.Condition()
        self._open = asyncio.Event()
        self._open.set()
        self._server = bare_server()

    @classmethod
    async def open(cls, address: str) -> Self:
        """Listen at `host:port`; port 0 is a free one. Raises ValueError when that cannot be."""
        collector = cls()
        service, _, method = otlp.EXPORT.strip("/").rpartition("/")
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(collector._export)
        collector._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        try:
            port = collector._server.add_insecure_port(address)
        except RuntimeError:
            raise ValueError(f"--otlp-listen {address}: nobody can listen there") from None
        collector.address = f"{address.rpartition(':')[0]}:{port}"
        await collector._server.start()
        return collector

    def hold(self) -> None:
        """From now on leave exports without an answer."""
        self._open.clear()

    def release(self) -> None:
        """Answer them."""
        self._open.set()

    async def until(self, is_there: Callable[[], bool], within: float) -> bool:
        """Wait until something is there that exports bring; False when it has not come in so many seconds."""
        try:
            async with asyncio.timeout(within), self._news:
                await self._news.wait_for(is_there)
        except TimeoutError:
            return False
        return True

    def of(self, traces: Collection[str]) -> list[Span]:
        """The spans of these traces."""
        return [span for span in self.spans if span.trace_id in traces]

    async def close(self) -> None:
        """Stop listening."""
        self.release()
        await self._server.stop(STOP_SECONDS)

    async def _export(self, payload: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            request = otlp.Request.FromString(payload)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the bytes do not parse")
        taken = [
            _span(each) for some in request.resource_spans for one in some.scope_spans for each in one.spans
        ]
        self.num_held += 1
        self.spans += taken[: MOST_SPANS - len(self.spans)]
        async with self._news:
            self._news.notify_all()
        try:
            await self._open.wait()
        finally:
            self.num_held -= 1
        return b""


def _span(span: Any) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        state=span.trace_state,
        name=span.name,
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        said=tuple(otlp.leaves(span)),
    )
