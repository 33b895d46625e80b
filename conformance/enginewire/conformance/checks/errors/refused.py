"""ERR-17: what is not advertised is refused, one negative check per capability of `features`."""

from __future__ import annotations

from enginewire.conformance.running.registry import CheckFunction, negative
from enginewire.conformance.session.context import REFUSALS, Context
from enginewire.conformance.session.features import FEATURES


def _refusal_of(capability: str) -> CheckFunction:
    async def is_refused(ctx: Context) -> None:
        await ctx.rejects(FEATURES[capability], codes=REFUSALS)

    is_refused.__doc__ = f"A request that uses {capability}."
    return is_refused


for _capability in FEATURES:
    negative(_capability)(_refusal_of(_capability))
