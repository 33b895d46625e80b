"""Drawn cases: what the greedy run tells of any mix of options, as one more check of many ids.

All cases are asked once and shared; each check reports what breaks its id. An id is judged only where its
own simple check holds, which says the same in fewer words. So it is with mixes,
which are cases beside options that change nothing of them: they are judged where the cases hold. And so it is
with guided cases, whose text has to be of the language of their guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginewire.conformance.oracle.beside import COUNTS, FACTS, IDLE, NAMES, SERVED, VALUES, mixed
from enginewire.conformance.oracle.findings import Finding, findings
from enginewire.conformance.oracle.guided import GREEDY, guided
from enginewire.conformance.oracle.languages import LANGUAGES
from enginewire.conformance.running.registry import WHOLE, CheckFunction, Phase, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.violation import NotApplicable

ENDS: Final = ("STP-01", "STP-02", "STP-04", "STP-05", "STP-07", "STP-08", "LIM-03", "LIM-06")
"""Simple checks of when and how choices end: a fault that one of them sees would show in each of these."""

BY_ENDS: Final = (
    *("STP-01", "STP-02", "STP-03", "STP-04", "STP-07", "LIM-01", "LIM-02", "LIM-06", "STR-06"),
    *("RES-04", "RES-05", "MUX-01"),
)
EDGES: Final = ("STR-04", "LIM-05")
"""Of cases that have no token left to get, and of those that name no `max_tokens`."""
STREAMS: Final = ("MUX-01/choices", "MUX-08", "MUX-08/queued")
RELIES_ON: Final = {"MUX-01": STREAMS, "MUX-10": STREAMS, "RES-10": ("RES-04/drawn",)}
"""What else an id relies on."""

BY_THE_REST: Final = (
    *("INF-09", "STR-02", "STR-03", "USE-01", "USE-02", "USE-03", "USE-04", "SAM-01"),
    *("SEQ-01", "SEQ-02", "SEQ-03", "RES-01", "RES-06", "RES-08", "RES-10", "MUX-10", "LIM-09"),
)
"""The ids that a drawn case can break."""

OFFERED: Final = (
    *("SAM-02", "SAM-06", "SAM-08", "SAM-09", "SAM-11", "SAM-12", "SAM-13", "SAM-14", "SAM-17"),
    *("SAM-03", "SAM-04", "SAM-04/batch-invariant", "SAM-04/full-batch", "SEQ-04", "SEQ-04/seeded"),
    *("RES-02", "RES-02/choices", "RES-02/multiplexed", "MUX-01/seeded"),
    *("LOG-01", "LOG-02", "LOG-03", "LOG-04", "LOG-07", "LOG-11", "ABO-01", "ABO-02"),
    *("CAN-01", "CAN-02", "CAN-03", "MUX-07", "MUX-12"),
)
"""What the options beside a case do by themselves."""


def _drawn(identifier: str) -> CheckFunction:
    async def holds(ctx: Context) -> None:
        """Whatever options are mixed."""
        if not ctx.session.options.cases:
            raise NotApplicable("--cases 0 draws none")
        _tell(ctx, identifier, await findings(ctx))

    holds.__name__ = "whatever_is_mixed"
    return holds


def _mixed(identifier: str) -> CheckFunction:
    async def holds(ctx: Context) -> None:
        """Beside options that change nothing of it, and beside requests that are aborted or left."""
        _tell(ctx, identifier, await mixed(ctx))

    holds.__name__ = "whatever_is_beside_it"
    return holds


def _guided(identifier: str) -> CheckFunction:
    async def holds(ctx: Context) -> None:
        """Whatever is asked for beside a guide."""
        _tell(ctx, identifier, await guided(ctx))

    holds.__name__ = "whatever_is_beside_a_guide"
    return holds


def _tell(ctx: Context, identifier: str, found: Sequence[Finding]) -> None:
    for finding in found:
        if finding.id == identifier:
            ctx.show(finding.exchange)
            raise finding.violation


for _id in (*BY_ENDS, *BY_THE_REST):
    _needs = (*WHOLE, *EDGES, _id, *RELIES_ON.get(_id, ()), *(ENDS if _id in BY_ENDS else ()))
    check(_id, variant="drawn", needs=_needs, phase=Phase.LOAD, alone=True)(_drawn(_id))

DRAWN: Final = tuple(f"{identifier}/drawn" for identifier in (*BY_ENDS, *BY_THE_REST))

for _id in (SERVED, IDLE, COUNTS, FACTS, VALUES, NAMES):
    _needs = (*WHOLE, *OFFERED, _id, *DRAWN)
    check(_id, variant="mixed", needs=_needs, phase=Phase.LOAD, alone=True, costly=True)(_mixed(_id))

GUIDES: Final = tuple(language.id for language in LANGUAGES)
ROWS: Final = ("LOG-01", "LOG-02", "LOG-03", "LOG-04")

for _id in (*GUIDES, GREEDY, VALUES):
    _needs = (*WHOLE, *GUIDES, *(() if _id in GUIDES else (*ROWS, _id)))
    check(
        _id, variant="guided", gate="guided_modes", needs=_needs, phase=Phase.LOAD, alone=True, costly=True
    )(_guided(_id))
