"""The reference with traces: two spans per request, sent to a collector as soon as the request has ended."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from enginewire import v1 as pb
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.foreign import otlp

Metadata = Iterable[tuple[str, str | bytes]]
TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(slots=True)
class Trace:
    """One request: whose it is, and when it came."""

    trace_id: bytes
    parent_id: bytes
    state: str
    is_sampled: bool
    metadata: dict[str, str]
    tokens: list[int]
    request_id: str = ""
    begin: int = field(default_factory=time.time_ns)


class Traced(Reference):
    """A reference that exports spans to `collector`, an address. Mutants are subclasses of it."""

    collector = ""
    gates = frozenset({"tracing"})
    pattern = TRACEPARENT

    def __init__(self) -> None:
        super().__init__()
        self._traces: dict[str, Trace] = {}
        self._exports: set[asyncio.Task[None]] = set()

    async def serve(self, target: str) -> grpc.aio.Server:
        """With a channel to the collector."""
        self._channel = grpc.aio.insecure_channel(self.collector)
        return await super().serve(target)

    async def shut_down(self, server: grpc.aio.Server) -> None:
        """Then nobody exports any more."""
        await super().shut_down(server)
        await self._channel.close()

    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        """One trace."""
        trace = self.trace(call.metadata, [])
        response = await super().embed(request, call)
        await self.ended_trace(trace)
        return response

    async def generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        """One trace. It is over before the caller hears the end, so that nobody who has heard it waits."""
        trace = self.trace(call.metadata, list(request.request.token_ids))
        trace.request_id = request.request_id
        async for response in super().generate(request, call):
            yield response
        await self.ended_trace(trace)

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        """Its trace is in the metadata of the Submit."""
        job = super().submitted(submit, call)
        metadata = self.metadata_of(submit, call)
        trace = self.trace(metadata, list(submit.generate.request.token_ids))
        trace.request_id = job.request_id
        self._traces[job.request_id] = trace
        return job

    def metadata_of(self, submit: pb.Submit, call: Call) -> Metadata:
        """Where the trace of a Submit is."""
        return submit.metadata.items()

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        """Until its end."""
        trace = self._traces.pop(job.request_id)
        await super().pump(stream, handle, job)
        await self.ended_trace(trace)

    def trace(self, metadata: Metadata, tokens: list[int]) -> Trace:
        """The caller's, or a new one."""
        said = {name: str(value) for name, value in metadata}
        if found := self.pattern.fullmatch(said.get("traceparent", "")):
            trace, parent, flags = found.groups()
            if trace.strip("0") and parent.strip("0"):
                ids = bytes.fromhex(trace), bytes.fromhex(parent)
                return Trace(*ids, said.get("tracestate", ""), bool(int(flags, 16) & 1), said, tokens)
        return Trace(secrets.token_bytes(16), b"", "", True, said, tokens)

    async def ended_trace(self, trace: Trace) -> None:
        """Send its spans, which nobody waits for."""
        if self.is_told(trace):
            task = asyncio.ensure_future(self.export(self.spans(trace)))
            self._exports.add(task)
            task.add_done_callback(self._exports.discard)

    def is_told(self, trace: Trace) -> bool:
        """Whether it has spans."""
        return trace.is_sampled

    def spans(self, trace: Trace) -> list[Any]:
        """That of the whole request, and that of its decode."""
        now = time.time_ns()
        common = {"trace_id": trace.trace_id, "trace_state": trace.state, "end_time_unix_nano": now}
        whole = otlp.Span(
            name="generate",
            span_id=secrets.token_bytes(8),
            parent_span_id=trace.parent_id,
            start_time_unix_nano=trace.begin,
            **common,
        )
        decode = otlp.Span(
            name="decode",
            span_id=secrets.token_bytes(8),
            parent_span_id=whole.span_id,
            start_time_unix_nano=trace.begin,
            **common,
        )
        _add(whole, "prompt_tokens", str(len(trace.tokens)))
        return [decode, whole]

    async def export(self, spans: list[Any]) -> None:
        """Send them."""
        request = otlp.Request()
        request.resource_spans.add().scope_spans.add().spans.extend(spans)
        await self._channel.unary_unary(otlp.EXPORT)(request.SerializeToString())


def _add(span: Any, key: str, text: str) -> None:
    span.attributes.add(key=key).value.string_value = text
