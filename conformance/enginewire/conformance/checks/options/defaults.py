"""SAM-10: what a request has that names none of its sampling options, or only some."""

from __future__ import annotations

from typing import Final

from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.violation import Violation, expect_equal

SEEDS: Final = 4
TOKENS: Final = 8
WARM: Final = 1.8
NAMED: Final[tuple[dict[str, Value], ...]] = ({}, {}, {"temperature": WARM}, {"top_k": 40})
"""What a request names of what it has by default."""


@check("SAM-10", needs=SHAPE)
async def defaults_are_said(ctx: Context) -> None:
    """Without options a request is served, and the defaults are values that it may send."""
    await ctx.generate(ctx.request(sampling_options=None))
    await ctx.generate(ctx.request(**_defaults(ctx)))


@check("SAM-10", variant="seeded", gate="seed", needs=(*SHAPE, "SAM-02", "SAM-10", "MUX-01"), alone=True)
async def defaults_are_used(ctx: Context) -> None:
    """A seed alone or beside one option, and the same with everything spelled out.

    By a call and over a stream in turns.
    """
    count = ctx.tokens(TOKENS)
    for seed in range(ctx.times(SEEDS, 2 * count, least=2)):
        named = NAMED[seed % len(NAMED)]
        request = ctx.request(**{"seed": seed, "max_tokens": count, "temperature": None, **named})
        unset = await ctx.start(request, is_multiplexed=seed % 2 == 1).ok()
        spelled = await ctx.generate(
            ctx.request(**{"seed": seed, "max_tokens": count, **_defaults(ctx), **named})
        )
        beside = f" beside {', '.join(named)}" if named else ""
        message = f"unset options{beside} do not mean Capabilities.default_sampling"
        expect_equal(unset.tokens, spelled.tokens, message)


def _defaults(ctx: Context) -> dict[str, Value]:
    """The defaults as options, as far as the engine takes them."""
    if not ctx.capabilities.HasField("default_sampling"):
        raise Violation("Capabilities.default_sampling is absent")
    defaults = ctx.capabilities.default_sampling
    names = ["temperature", "top_p", "top_k"]
    names += ["min_p"] if ctx.capabilities.min_p else []
    names += ["repetition_penalty"] if ctx.capabilities.penalties else []
    return {name: getattr(defaults, name) for name in names}
