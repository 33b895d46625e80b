"""Which checks of backends there are. Knows nothing about how they are run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.running.judged import Judged
from enginewire.conformance.running.registry import Phase

ClientCheckFunction = Callable[[ClientContext], Awaitable[None]]

WAY_THROUGH = "CLI-01"
"""What every other check needs: text, tokens and the end of a plain answer."""


@dataclass(frozen=True, slots=True)
class ClientCheck(Judged):
    """A check of backends."""

    function: ClientCheckFunction
    hostile: bool = False
    """Plays what may break the backend for good: it gets one of its own."""
    is_costly: bool = False
    """It takes seconds: proofs of other checks leave it out."""
    phase: Phase = Phase.SAFE


_checks: dict[str, ClientCheck] = {}


def client_check(
    identifier: str, variant: str = "", *, hostile: bool = False, costly: bool = False
) -> Callable[[ClientCheckFunction], ClientCheckFunction]:
    """Register a check of one requirement; `variant` tells several checks of one id apart."""

    def register(function: ClientCheckFunction) -> ClientCheckFunction:
        check = ClientCheck(identifier, function, variant, hostile, costly)
        if check.key in _checks:
            raise ValueError(f"two checks are called {check.key}: give one of them a variant")
        _checks[check.key] = check
        return function

    return register


def registered() -> tuple[ClientCheck, ...]:
    """What was registered so far, in order."""
    return tuple(_checks[key] for key in sorted(_checks))
