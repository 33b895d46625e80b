"""ERR-17: what is not advertised is refused, one negative check per capability of `features`."""

from __future__ import annotations

from enginewire.conformance.context import REFUSALS, Context
from enginewire.conformance.features import FEATURES
from enginewire.conformance.registry import CheckFunction, negative


def _refusal_of(capability: str) -> CheckFunction:
    async def is_refused(ctx: Context) -> None:
        await ctx.rejects(FEATURES[capability], codes=REFUSALS)

    is_refused.__doc__ = f"A request that uses {capability}."
    return is_refused


for _capability in FEATURES:
    negative(_capability)(_refusal_of(_capability))
