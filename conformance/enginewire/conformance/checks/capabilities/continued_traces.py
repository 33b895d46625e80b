"""MDT-02: who calls has a trace, which the server goes on with. And callers with traces, for TRC."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.checks.streams.shapes import CHOICES, MULTIPLEXED, PLAIN, Shape, check_in
from enginewire.conformance.running.registry import check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.foreign.collector import Collector
from enginewire.conformance.wire.over_a_stream import CallOverStream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect

EXPORT_SECONDS: Final = 8.0
"""Exporters gather spans for 5 s when nobody says anything else."""
STATE: Final = "kit=1,other=a:b"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a trace of its own, and the span in it under which it asks."""

    trace_id: str
    span_id: str

    @classmethod
    def new(cls) -> Caller:
        """One that was never there before."""
        return cls(secrets.token_hex(16), secrets.token_hex(8))

    def metadata(self, *, is_sampled: bool = True) -> Metadata:
        """As it travels."""
        parent = f"00-{self.trace_id}-{self.span_id}-{'01' if is_sampled else '00'}"
        return (("traceparent", parent), ("tracestate", STATE))


@check_in("MDT-02", PLAIN, CHOICES, MULTIPLEXED, in_company=False)
async def traces_go_on(ctx: Context, shape: Shape) -> None:
    """A request with a sampled `traceparent`: a span of that trace has the caller's as its parent."""
    caller = Caller.new()
    await generate(ctx, caller.metadata(), shape)
    await continued(ctx, caller)


@check("MDT-02", variant="embedded", gate="embeddings", in_company=False)
async def traces_of_embeddings_go_on(ctx: Context) -> None:
    """The same with Embed."""
    caller, request = Caller.new(), pb.EmbedRequest(request_id=ctx.request().request_id)
    request.request.token_ids.add(token_ids=ctx.prompt(4))
    seen = await ctx.client.ask("EmbeddingService.Embed", request, metadata=caller.metadata())
    expect(seen.is_ok, "an embedding with a trace failed", expected="OK", seen=seen.status)
    await continued(ctx, caller)


@check("MDT-02", variant="submits", gate="multiplexed", needs=("MUX-01",), alone=True, in_company=False)
async def traces_of_submits_go_on(ctx: Context) -> None:
    """Two requests on one stream, each with a trace of its own."""
    callers = [Caller.new() for _ in range(2)]
    async with open_stream(ctx) as stream:
        for handle, caller in enumerate(callers):
            request = ctx.request(max_tokens=2)
            stream.send(stream.submitted(handle, request, metadata=caller.metadata()))
        await stream.until_ended(*range(len(callers)))
    for caller in callers:
        await continued(ctx, caller)


def collector_of(ctx: Context) -> Collector:
    """Where the target sends its spans; NotApplicable where it has not been told."""
    if ctx.session.collector is None:
        raise NotApplicable("needs --otlp-listen, and a target that sends its spans there")
    return ctx.session.collector


async def generate(
    ctx: Context, metadata: Metadata, shape: Shape = PLAIN, request: pb.GenerateRequest | None = None
) -> list[int]:
    """The tokens of a request that has to be answered in time."""
    request = request or ctx.request(max_tokens=2)
    if shape.choices > 1:
        request = requests.change(request, n=min(shape.choices, ctx.choices(shape.choices)))
    timeout = 2 * ctx.bounds.answer
    call = (
        CallOverStream(ctx.client, request, timeout=timeout, metadata=metadata)
        if shape.is_multiplexed
        else ctx.client.generate(request, timeout=timeout, metadata=metadata)
    )
    seen = await call.finish()
    expect(seen.is_ok, "a request with a trace failed", expected="OK", seen=seen.status)
    return [token for each in seen.messages for token in each.output.token_ids]  # type: ignore[attr-defined]


async def continued(ctx: Context, caller: Caller) -> None:
    """A Violation unless a span of the caller's trace soon has the caller's as its parent."""

    def is_there() -> bool:
        return any(span.parent_id == caller.span_id for span in collector.of([caller.trace_id]))

    collector = collector_of(ctx)
    if not await collector.until(is_there, EXPORT_SECONDS * ctx.bounds.scale):
        seen = collector.of([caller.trace_id]) or f"{len(collector.spans)} spans of other traces"
        raise Violation("no span has the caller's as its parent", expected=caller.span_id, seen=seen)
