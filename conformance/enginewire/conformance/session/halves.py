"""The backend's part of a disaggregated request: ask one engine, carry the hand-off to the other."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import expect


async def prefilled(ctx: Context, request: pb.GenerateRequest, client: Client | None = None) -> Stream:
    """The answer of the prefill engine, which has to succeed."""
    return await ctx.start(request, client=client or ctx.prefill(), timeout=ctx.bounds.answer).ok()


def handoff(stream: Stream) -> pb.PrefillHandoff:
    """What a prefill answer hands over; nothing is a Violation."""
    found = [output.prefill_handoff for output in stream.outputs if output.HasField("prefill_handoff")]
    expect(
        found, "a prefill answer has no hand-off", expected="a prefill_handoff", seen=stream.exchange.status
    )
    return found[-1]


def decoding(ctx: Context, request: pb.GenerateRequest, handed: pb.PrefillHandoff) -> pb.GenerateRequest:
    """The same request for the decode engine."""
    result: Value = pb.PrefillResult(handoff=pb.PrefillHandoff.FromString(handed.SerializeToString()))
    return requests.change(request, request_id=ctx.request().request_id, prefill_result=result)


async def both(ctx: Context, request: pb.GenerateRequest) -> Stream:
    """The whole request, which has to succeed: the decode engine's answer."""
    handed = handoff(await prefilled(ctx, request))
    return await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.answer).ok()
