"""Checks of a backend whose caller goes away, or whose time is over: the engine works for nobody then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.checks.failures import FULL
from enginewire.conformance.client_side.context import QUIET_SECONDS, ClientContext, only_turn
from enginewire.conformance.client_side.stage.script import DIED, Stay, Undecided, say
from enginewire.conformance.wire.violation import NotApplicable, expect

FULL_SECONDS: Final = 0.6
FULL_FOR_A_WHILE: Final = replace(FULL, retry_after_ms=round(1e3 * FULL_SECONDS))
SHORT_SECONDS: Final = 0.4
"""Over before the engine has room again."""
AFTERWARDS_SECONDS: Final = 2 * FULL_SECONDS
"""Time for another attempt, where a backend makes one all the same."""


@client_check("CLI-12")
async def a_caller_that_leaves_frees_the_engine(ctx: ClientContext) -> None:
    """After its first token."""
    scene = ctx.play(say("a"), Stay())
    answer = await ctx.start(scene).first_token()
    answer.call.cancel()
    await ctx.left(only_turn(scene), "the caller cancelled its call")


@client_check("CLI-12", "before-acceptance")
async def a_caller_that_leaves_early_frees_the_engine(ctx: ClientContext) -> None:
    """The engine has the request and has not said whether it takes it."""
    scene = ctx.play(Undecided())
    answer = ctx.start(scene)
    turn = await ctx.first_turn(scene)
    answer.call.cancel()
    await ctx.left(turn, "the caller cancelled its call before the request was accepted")


@client_check("CLI-12", "continued")
async def a_caller_that_leaves_late_frees_the_next_engine(ctx: ClientContext) -> None:
    """The first one was lost behind a token, and another one goes on."""
    scene = ctx.play(say("a"), DIED, then=[[say("b"), Stay()]])
    answer = await ctx.start(scene).first_token()
    while len(answer.choice.tokens) < 2:
        if await anext(answer.call, None) is None:
            raise NotApplicable("this backend does not go on with an answer")
    answer.call.cancel()
    await ctx.left(scene.turns[-1], "the caller cancelled its call while another attempt was running")


@client_check("CLI-12", "waiting")
async def a_caller_that_leaves_in_the_wait_is_not_waited_for(ctx: ClientContext) -> None:
    """The engine is full for a while, and nobody is there any more when it has room."""
    scene = ctx.play(FULL_FOR_A_WHILE, then=[[say("a"), Stay()]])
    answer = ctx.start(scene)
    await ctx.first_turn(scene)
    await asyncio.sleep(QUIET_SECONDS)
    answer.call.cancel()
    await asyncio.sleep(AFTERWARDS_SECONDS)
    for turn in scene.turns[1:]:
        await ctx.left(turn, "the caller had cancelled its call before that attempt")


@client_check("CLI-32", "spent")
async def no_attempt_has_time_when_it_is_over(ctx: ClientContext) -> None:
    """The deadline passes while the engine is full."""
    scene = ctx.play(FULL_FOR_A_WHILE, then=[[say("a"), Stay()]])
    answer = ctx.start(scene, timeout=SHORT_SECONDS)
    await answer.call.finish()
    await asyncio.sleep(AFTERWARDS_SECONDS)
    # By the engine's clock: on a busy machine the first attempt may be late itself.
    over = min((turn.exchange.started_at for turn in scene.turns), default=0.0) + SHORT_SECONDS
    for turn in scene.turns[1:]:
        if turn.exchange.started_at > over:
            left = turn.seconds_left
            expect(
                left is not None and left <= SHORT_SECONDS / 2,
                "an attempt behind the caller's deadline has time",
                expected="none",
                seen="no limit" if left is None else f"{left:.1f} s",
            )
