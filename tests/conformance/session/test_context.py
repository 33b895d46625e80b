from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.violation import NotApplicable, Violation
from tests.conformance.judging import judged, made_up


async def test_what_a_check_leaves_running_asks_the_server_nothing_more() -> None:
    left: list[asyncio.Task[None]] = []

    async def ask_for_ever(ctx: Context) -> None:
        while True:
            with suppress(Violation):
                await ctx.client.load()

    async def leave_it(ctx: Context) -> None:
        left.append(asyncio.create_task(ask_for_ever(ctx)))
        await ctx.client.load()

    await judged(checks=[made_up("INF-01", leave_it)])
    async with asyncio.timeout(10):
        with pytest.raises(NotApplicable):
            await left[0]
