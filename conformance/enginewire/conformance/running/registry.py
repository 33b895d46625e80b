"""What a check is, of either side, and the decorators that register those of engine servers.

Knows nothing about how checks are run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from enginewire.conformance.running.catalogue import Catalogue

if TYPE_CHECKING:
    from enginewire.conformance.session.context import Context

CheckFunction = Callable[["Context"], Awaitable[None]]

SHAPE = ("STR-01", "STR-02", "STR-03", "STR-05", "STR-06", "STR-10")
"""What a check relies on that reads tokens and terminals of a stream."""

WHOLE = (*SHAPE, "LIM-01", "LIM-02")
"""What a check relies on that demands every token of a request and its natural end."""

REFUSED = "ERR-17"
"""The requirement behind every negative check."""

OVERLOADED = "ERR-16"
"""What a check relies on that judges how requests are refused for want of room."""


PROMPT = "token_ids"
"""The field of a prompt, to which company adds a beginning."""


class Phase(IntEnum):
    """What a check does to the target; phases run one after the other."""

    SAFE = 0
    LOAD = 1
    DESTRUCTIVE = 2
    """Leaves a server that serves no more. Each check gets a fresh one where the kit can launch."""
    LAUNCH = 3
    """Starts and signals servers itself."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of either side and when to run it: `function` raises Violation or NotApplicable, or returns."""

    id: str
    function: Callable[..., Awaitable[None]]
    variant: str = ""
    needs: tuple[str, ...] = ()
    phase: Phase = Phase.SAFE
    alone: bool = False
    gate: str = ""
    unless: str = ""
    is_costly: bool = False
    in_company: bool = True
    not_beside: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Unique and stable: the id, with the variant where an id has several checks."""
        return f"{self.id}/{self.variant}" if self.variant else self.id

    @property
    def name(self) -> str:
        """Where its code is."""
        module = self.function.__module__.removeprefix("enginewire.conformance.")
        return f"{module}:{getattr(self.function, '__name__', '?')}"


CHECKS: Final = Catalogue[Check]("enginewire.conformance.checks")


def check(
    identifier: str,
    *,
    needs: tuple[str, ...] = (),
    phase: Phase = Phase.SAFE,
    alone: bool = False,
    variant: str = "",
    gate: str = "",
    costly: bool = False,
    in_company: bool | None = None,
    not_beside: tuple[str, ...] = (),
    counts_prompt: bool = False,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register the check of one requirement.

    `needs`: ids without which a failure would say nothing; when one of them fails, this is BLOCKED.
    `alone`: nothing else runs beside it, as for whatever reads the load or measures time.
    `variant`: tells several checks of one id apart. `gate`: what must be declared beside the
    requirement's own gate. `costly`: it takes seconds, so self-test spares it the mutants of others.
    `in_company=False`: it looks at what options change that it does not set itself. What is costly is judged
    in company only where it says `in_company=True`. `not_beside`: at what these fields change alone.
    `counts_prompt`: at tokens or cached blocks of a prompt, which stays as it is.
    """
    apart = (*not_beside, PROMPT) if counts_prompt else not_beside

    def register(function: CheckFunction) -> CheckFunction:
        added = Check(
            identifier,
            function,
            variant,
            needs,
            phase,
            alone,
            gate,
            is_costly=costly,
            in_company=not costly if in_company is None else in_company,
            not_beside=apart,
        )
        CHECKS.add(added.key, added)
        return function

    return register


def negative(
    gate: str, *, alone: bool = False, phase: Phase = Phase.SAFE
) -> Callable[[CheckFunction], CheckFunction]:
    """Register what must be refused where the capability is not declared: ERR-17 of that gate.

    `phase`: DESTRUCTIVE for a call that ends a server which serves it all the same.
    """

    def register(function: CheckFunction) -> CheckFunction:
        added = Check(REFUSED, function, gate, SHAPE, phase, alone, unless=gate)
        CHECKS.add(added.key, added)
        return function

    return register
