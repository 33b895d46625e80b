"""Backends that each break one rule: the reference with about one method overridden."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.client_side.reference.text import ReferenceChoice
from enginewire.conformance.mutants import Mutant
from enginewire.conformance.running.catalogue import Catalogue

PREFIX: Final = "client/"
"""Tells it apart from a broken server of the same name."""

MUTANTS: Final = Catalogue[Mutant](__name__)

B = TypeVar("B", bound="type[ReferenceBackend] | type[ReferenceChoice]")


def client_mutant(name: str, *, kills: str | tuple[str, ...]) -> Callable[[B], B]:
    """Register a subclass of ReferenceBackend, or of its choices, under a name that says what is wrong."""
    full = f"{PREFIX}{name}"

    def register(broken: B) -> B:
        MUTANTS.add(full, Mutant(full, (kills,) if isinstance(kills, str) else kills, _backend(broken)))
        return broken

    return register


@cache
def client_mutants() -> tuple[Mutant, ...]:
    """Every broken backend, by name."""
    return MUTANTS.all()


def _backend(broken: type[ReferenceBackend] | type[ReferenceChoice]) -> type[ReferenceBackend]:
    if issubclass(broken, ReferenceBackend):
        return broken
    return type(broken.__name__, (ReferenceBackend,), {"choice_class": broken})
