"""VER: clients of other revisions."""

from __future__ import annotations

from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.capabilities.embeddings import embed
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context, require_refusal
from enginewire.conformance.session.fields import unknown_fields
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

UINT32_MAX: Final = 2**32 - 1
OUTSIDE: Final = (grpc.StatusCode.FAILED_PRECONDITION,)
RANGE: Final = ("minimum_client_revision", "maximum_client_revision")


@check("VER-01")
async def revisions_are_told(ctx: Context) -> None:
    """Revision, range and digest, which is that of the contract where the revision is the kit's own."""
    info = ctx.info
    low, high = info.minimum_client_revision, info.maximum_client_revision
    expect(info.contract_revision >= 1, "contract_revision is not set", seen=info.contract_revision)
    expect(1 <= low <= high, "the accepted range is empty", expected="1 or more", seen=f"{low} to {high}")
    message = "contract_revision is outside the accepted range"
    within = low <= info.contract_revision <= high
    expect(within, message, expected=f"{low} to {high}", seen=info.contract_revision)
    expect(info.schema_digest, "schema_digest is not set")
    if info.contract_revision == pb.CONTRACT_REVISION:
        message = "schema_digest is not that of the contract's descriptors at this revision"
        expect_equal(info.schema_digest.lower(), pb.schema_digest(), message)


@check("VER-02", needs=(*SHAPE, "VER-01"))
async def other_revisions_are_refused(ctx: Context) -> None:
    """Beside the range, and far beyond it, for a call and for a stream."""
    low, high = ctx.info.minimum_client_revision, ctx.info.maximum_client_revision
    for revision in {low - 1, high + 1, UINT32_MAX}:
        # 0 is a client that does not say.
        if revision == 0 or low <= revision <= high or revision > UINT32_MAX:
            continue
        exchange = await ctx.rejects(
            {"client_revision": revision},
            codes=OUTSIDE,
            reason=pb.ERROR_REASON_REVISION_MISMATCH,
        )
        told = exchange.detail.metadata if exchange.detail else {}
        seen = {name: told.get(name, "") for name in RANGE}
        expected = dict(zip(RANGE, (str(low), str(high)), strict=True))
        expect_equal(seen, expected, "the refusal does not tell the accepted range")
        request = requests.change(ctx.request(), client_revision=revision)
        submitted = (await ctx.start(request, is_multiplexed=True).end()).exchange
        require_refusal(submitted, OUTSIDE, reason=pb.ERROR_REASON_REVISION_MISMATCH)


@check("VER-02", variant="embed", gate="embeddings", needs=("VER-02", "EMB-01"))
async def other_revisions_embed_nothing(ctx: Context) -> None:
    """The next one."""
    high = ctx.info.maximum_client_revision
    if high >= UINT32_MAX:
        raise NotApplicable("there is no revision that is not accepted")
    refused = await embed(ctx, [ctx.prompt()], revision=high + 1)
    require_refusal(refused, OUTSIDE, reason=pb.ERROR_REASON_REVISION_MISMATCH)


@check("VER-03", needs=(*SHAPE, "VER-02", "ERR-08"))
async def newer_clients_are_served(ctx: Context) -> None:
    """Each end of the range, with fields that this server cannot know."""
    tokens = (await ctx.generate(ctx.request())).tokens
    for revision in (ctx.info.minimum_client_revision, ctx.info.maximum_client_revision):
        request = requests.change(ctx.request(), client_revision=revision)
        for message in (request, request.request, request.request.sampling_options):
            message.MergeFromString(unknown_fields())
        stream = await ctx.start(request).end()
        message_text = f"a client of revision {revision} is not served"
        expect(stream.exchange.is_ok, message_text, expected="OK", seen=stream.exchange.status)
        expect_equal(stream.tokens, tokens, f"a client of revision {revision} gets other tokens")


@check("VER-05", needs=(*SHAPE, "VER-02", "SAM-01"), alone=True)
async def revisions_do_not_mix(ctx: Context) -> None:
    """A client that is refused, and one of each end of the range, while another one is served."""
    high = ctx.info.maximum_client_revision
    if high >= UINT32_MAX:
        raise NotApplicable("there is no revision that is not accepted")
    count = ctx.tokens(64)
    alone = (await ctx.generate(ctx.request(max_tokens=count))).tokens

    def started(revision: int) -> Stream:
        return ctx.start(requests.change(ctx.request(max_tokens=count), client_revision=revision))

    streams = [*map(started, (0, ctx.info.minimum_client_revision, high))]
    for stream in streams:
        await stream.first_token()
    refused = await ctx.refused(requests.change(ctx.request(), client_revision=high + 1))
    require_refusal(refused, OUTSIDE)
    for stream in [*streams, *map(started, (0, high))]:
        await stream.end()
        if not stream.exchange.is_ok or stream.tokens != alone:
            revision = stream.request.client_revision
            message = f"a client of revision {revision} is disturbed by one that is refused"
            raise Violation(message, expected=alone, seen=f"{stream.exchange.status}, {stream.tokens}")
