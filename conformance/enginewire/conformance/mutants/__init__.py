"""Servers that each break one rule: the reference with about one method overridden.

A mutant proves that a check can fail. One module per area; `mutants` imports them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from enginewire.conformance.running.catalogue import Catalogue

if TYPE_CHECKING:
    from enginewire.conformance.client_side.reference.backend import ReferenceBackend
    from enginewire.conformance.reference.server import Reference

R = TypeVar("R", bound="type[Reference]")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken server or backend, and the keys of exactly those checks that have to fail on it."""

    name: str
    kills: tuple[str, ...]
    server: type[Reference] | type[ReferenceBackend]


MUTANTS: Final = Catalogue[Mutant](__name__)


def mutant(name: str, *, kills: str | tuple[str, ...]) -> Callable[[R], R]:
    """Register a subclass of Reference under a name that says what is wrong with it."""

    def register(server: R) -> R:
        MUTANTS.add(name, Mutant(name, (kills,) if isinstance(kills, str) else kills, server))
        return server

    return register


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every broken server, by name."""
    return MUTANTS.all()
