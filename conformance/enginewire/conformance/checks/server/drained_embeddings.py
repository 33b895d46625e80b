"""DRN: requests to embed that are in flight when a drain begins, or come after that."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.checks.capabilities.embeddings import embed, is_live, lasting_embedding
from enginewire.conformance.checks.server.drains import UNAVAILABLE, begun, final_of, in_flight, state_name
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.context import Context, require_refusal
from enginewire.conformance.wire.loads import describe_load
from enginewire.conformance.wire.violation import NotApplicable, expect


@check(
    "DRN-05",
    variant="embeddings",
    gate="embeddings",
    phase=Phase.DESTRUCTIVE,
    needs=("EMB-01", "EMB-07", "DRN-05"),
)
async def drained_means_without_embeddings(ctx: Context) -> None:
    """Nothing but a request to embed is in flight: it is over when the drain is."""
    embedding = await lasting_embedding(ctx)
    drain = await begun(ctx)
    is_waited_for = await is_live(ctx)
    final = await final_of(drain)
    load = await ctx.client.load()
    is_over = not (load.running or load.waiting)
    await embedding
    if is_over and not is_waited_for:
        raise NotApplicable("the longest request to embed ends before a drain can be seen to wait for it")
    message = f"a drain ends as {state_name(final)} while a request to embed is in flight"
    expect(is_over, message, expected="nothing in flight", seen=describe_load(load))


@check(
    "DRN-02",
    variant="embeddings",
    gate="embeddings",
    phase=Phase.DESTRUCTIVE,
    needs=(*SHAPE, "EMB-01", "DRN-02"),
)
async def later_ones_embed_nothing(ctx: Context) -> None:
    """While a stream is still in flight, and after the end of the drain."""
    (stream,) = await in_flight(ctx, 1)
    drain = await begun(ctx)
    during = await embed(ctx, [ctx.prompt()])
    await stream.end()
    await drain.finish()
    for exchange in (during, await embed(ctx, [ctx.prompt()])):
        require_refusal(exchange, UNAVAILABLE, reason=pb.ERROR_REASON_DRAINING)
