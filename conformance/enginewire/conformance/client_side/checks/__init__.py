"""The checks of backends, one module per area."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from enginewire.conformance.running.catalogue import Catalogue
from enginewire.conformance.running.registry import Check, Phase

if TYPE_CHECKING:
    from enginewire.conformance.client_side.context import ClientContext

ClientCheckFunction = Callable[["ClientContext"], Awaitable[None]]

WAY_THROUGH: Final = "CLI-01"
"""What every other check needs: text, tokens and the end of a plain answer."""

DRAWN: Final = "drawn"
"""The variant of checks that judge what is drawn: they are last, for the others say more."""

CHECKS: Final = Catalogue[Check](__name__)


def client_check(
    identifier: str,
    variant: str = "",
    *,
    needs: tuple[str, ...] = (),
    hostile: bool = False,
    costly: bool = False,
) -> Callable[[ClientCheckFunction], ClientCheckFunction]:
    """Register a check of one requirement; the words are those of `running.registry.check`.

    `hostile`: it plays what may break a backend for good, so it gets one of its own.
    """
    phase = Phase.DESTRUCTIVE if hostile else Phase.SAFE

    def register(function: ClientCheckFunction) -> ClientCheckFunction:
        added = Check(identifier, function, variant, needs, phase, is_costly=costly)
        CHECKS.add(added.key, added)
        return function

    return register


@cache
def client_checks() -> tuple[Check, ...]:
    """Every check of backends, by key."""
    return CHECKS.all()
