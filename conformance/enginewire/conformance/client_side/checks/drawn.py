"""Drawn cases: what the contract says of any answer of an engine, as one more check of many ids.

All cases are played once and shared; each check reports what breaks its id. They are judged only where the
simple checks of text hold, which say the same in fewer words.
"""

from __future__ import annotations

from typing import Final

from enginewire.conformance.client_side.checks import DRAWN, ClientCheckFunction, client_check
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.oracle.findings import findings
from enginewire.conformance.wire.violation import NotApplicable

IDS: Final = (
    *("CLI-02", "CLI-03", "CLI-04", "CLI-05", "CLI-06", "CLI-07", "CLI-08", "CLI-15", "CLI-17"),
    *("CLI-18", "CLI-19", "CLI-20", "CLI-21", "CLI-22", "CLI-23", "CLI-24", "CLI-25", "CLI-28", "CLI-29"),
    *("CLI-30", "CLI-34"),
)
"""The ids that a drawn case can break."""

NEEDS: Final = (*IDS, "CLI-01", "CLI-09", "CLI-10", "CLI-13")
"""Those whose simple checks would be said again by drawn cases."""


def _drawn(identifier: str) -> ClientCheckFunction:
    async def whatever_is_mixed(ctx: ClientContext) -> None:
        """Whatever the engine says, and whatever is asked of it."""
        if not (ctx.backends.options.cases or ctx.backends.options.case):
            raise NotApplicable("--cases 0 draws none")
        for finding in await findings(ctx):
            if finding.id == identifier:
                ctx.show(finding.exchanges)
                raise finding.violation

    return whatever_is_mixed


for _id in IDS:
    client_check(_id, DRAWN, needs=NEEDS)(_drawn(_id))
