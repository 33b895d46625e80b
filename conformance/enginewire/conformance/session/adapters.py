"""The operator's side for checks: adapters that are loaded for a while. Judges nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.exchange import Exchange

LIST: Final = "AdminService.ListAdapters"


async def load(ctx: Context, name: str, source: str) -> Exchange:
    """LoadAdapter, whatever it answers."""
    request = pb.LoadAdapterRequest(name=name, source=source)
    return await ctx.client.ask("AdminService.LoadAdapter", request, timeout=ctx.bounds.check / 2)


async def unload(ctx: Context, name: str) -> Exchange:
    """UnloadAdapter, whatever it answers."""
    return await ctx.client.ask("AdminService.UnloadAdapter", pb.UnloadAdapterRequest(name=name))


async def adapters(ctx: Context) -> Sequence[pb.Adapter]:
    """What ListAdapters shows; a failure is a Violation."""
    exchange = await ctx.client.ask(LIST, pb.ListAdaptersRequest())
    return cast(pb.ListAdaptersResponse, exchange.response()).adapters


async def listed(ctx: Context) -> list[str]:
    """The names of them."""
    return [adapter.name for adapter in await adapters(ctx)]


def new_name(ctx: Context) -> str:
    """A name that no adapter has."""
    return f"{ctx.session.next_number()}-{ctx.session.run_id}"


@asynccontextmanager
async def loaded(
    ctx: Context, sources: Sequence[str], names: Sequence[str] = ()
) -> AsyncIterator[Sequence[str]]:
    """Names, or new ones, under which these are loaded until the end. A failure is a Violation."""
    names = names or [new_name(ctx) for _ in sources]
    try:
        for name, source in zip(names, sources, strict=True):
            (await load(ctx, name, source)).response()
        yield names
    finally:
        await ctx.leave()
        for name in names:
            await _unload_when_free(ctx, name)


async def _unload_when_free(ctx: Context, name: str) -> None:
    """As soon as none of the requests that have ended uses it any more."""
    looks = Looks(ctx.bounds.reaction)
    while (await unload(ctx, name)).code is grpc.StatusCode.FAILED_PRECONDITION and not looks.are_over():
        await pause()
