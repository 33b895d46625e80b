"""Checks of what a backend agrees on with its engine for the whole connection: the revision, the pings."""

from __future__ import annotations

import asyncio
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.context import ClientContext, only_turn
from enginewire.conformance.client_side.stage.engine import ScriptedEngine
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.client_side.stage.script import LENGTH, Hold, say
from enginewire.conformance.session.session import Unreachable
from enginewire.conformance.wire.violation import expect, expect_equal

OWN: Final = pb.CONTRACT_REVISION
TOO_NEW: Final = ((OWN + 1, OWN + 2), (OWN + 1, OWN - 1))
"""Ranges that begin beyond this contract; the second one is empty as well."""
MIN_KEEPALIVE_MS: Final = 5_000
SILENT_SECONDS: Final = 8.0
"""Time for four pings of a backend that sends one every two seconds; the engine ends it at the third."""


@client_check("CLI-16")
async def an_engine_without_a_common_revision_is_refused(ctx: ClientContext) -> None:
    """It may end, or never serve, or refuse every request; what it may not do is use the engine."""
    for revisions in TOO_NEW:
        engine = ctx.backends.engine(Facts(revisions=revisions))
        await _expect_unused(ctx, engine)


async def _expect_unused(ctx: ClientContext, engine: ScriptedEngine) -> None:
    try:
        backend = await ctx.backends.fresh(engine)
    except Unreachable:
        return
    try:
        other = await ctx.on(backend)
        await other.start(other.play(say("ab", finish=LENGTH))).failed()
        expect_equal(len(engine.turns), 0, "requests were sent to an engine of another revision")
    finally:
        await backend.stop()


@client_check("CLI-16", "older-server")
async def an_older_engine_is_used_in_its_own_revision(ctx: ClientContext) -> None:
    """The newest revision that it accepts is the one before ours, or the first."""
    older = max(1, OWN - 1)
    await _expect_named(ctx, (1, older), older)


@client_check("CLI-16", "newer-server")
async def a_newer_engine_is_used_in_our_revision(ctx: ClientContext) -> None:
    """It still accepts us."""
    await _expect_named(ctx, (1, OWN + 1), OWN)


async def _expect_named(ctx: ClientContext, revisions: tuple[int, int], common: int) -> None:
    """A backend may be older than this kit, or say nothing: 0."""
    backend = await ctx.backends.fresh(ctx.backends.engine(Facts(revisions=revisions)))
    try:
        other = await ctx.on(backend)
        scene = other.play(say("ab", finish=LENGTH))
        await other.start(scene).ok()
        named = only_turn(scene).request.client_revision
        message = "client_revision is none that both know"
        expect(named <= common, message, expected=f"at most {common}", seen=named)
    finally:
        await backend.stop()


@client_check("CLI-35", costly=True)
async def pings_are_as_rare_as_the_engine_needs(ctx: ClientContext) -> None:
    """A long prefill of an engine that bears few pings and ends the connection of whoever sends more."""
    backend = await ctx.backends.fresh(ctx.backends.engine(Facts(min_keepalive_ms=MIN_KEEPALIVE_MS)))
    try:
        other, hold = await ctx.on(backend), Hold()
        scene = other.play(hold, say("ab", finish=LENGTH))
        answer = other.start(scene, timeout=SILENT_SECONDS + 2 * other.patience)
        await asyncio.sleep(SILENT_SECONDS)
        hold.released.set()
        expect_equal((await answer.ended()).choice.text, "ab", "the answer is not whole: pinged too often?")
        expect_equal(len(scene.turns), 1, "the connection was lost in the silence: pinged too often?")
    finally:
        await backend.stop()
