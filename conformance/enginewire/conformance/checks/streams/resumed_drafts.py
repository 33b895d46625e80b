"""RES: requests that go on where drafts foretell what comes."""

from __future__ import annotations

import random
from typing import Final

from enginewire.conformance.checks.streams.resume import RESUMED, goes_on
from enginewire.conformance.checks.streams.resumed_choices import several_go_on
from enginewire.conformance.checks.streams.shapes import PLAIN
from enginewire.conformance.oracle.repetition import only
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.violation import NotApplicable

LONG: Final = 32
OF_TWO: Final = 64
"""Tokens of a prompt: as many as say of most beginnings how they go on."""
HOT: Final = 100.0


@check(
    "RES-02",
    variant="repeating",
    gate="seed",
    needs=(*SHAPE, "INF-05", "ERR-05/ends", RESUMED, "RES-02", "RES-02/choices"),
    alone=True,
)
async def seeded_drafts_go_on(ctx: Context) -> None:
    """One of two tokens each time, which a draft may foretell: the random number is that of the place."""
    await _go_on(ctx, "seeded", seed=11, temperature=HOT)


@check(
    "RES-03",
    variant="repeating",
    gate="penalties",
    needs=(*SHAPE, RESUMED, "RES-03", "RES-03/choices"),
    alone=True,
)
async def penalised_drafts_go_on(ctx: Context) -> None:
    """One of two tokens each time: what comes in the same step counts."""
    for value in (0.3, 2.0):
        await _go_on(ctx, "penalised", frequency_penalty=value)


async def _go_on(ctx: Context, what: str, **options: Value) -> None:
    """One choice, and two where a request may have them."""
    asked = {**_of_two(ctx), **options}
    await goes_on(ctx, what, PLAIN, **asked)
    if ctx.choices(2) > 1:
        await several_go_on(ctx, what, **asked)


def _of_two(ctx: Context) -> dict[str, Value]:
    """Only two tokens may come, and the prompt has them in most orders: drafts are right now and then."""
    two = ctx.prompt()[:2]
    if not (alone := only(ctx, *two)):
        raise NotApplicable("without logit_bias and allowed_token_ids nothing keeps other tokens out")
    prompt = tuple(random.Random(OF_TWO).choices(two, k=OF_TWO))
    return {"token_ids": prompt, "max_tokens": ctx.tokens(LONG, OF_TWO), **alone}
