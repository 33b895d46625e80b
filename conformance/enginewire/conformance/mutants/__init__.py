"""Servers that each break one rule: the reference with about one method overridden.

A mutant proves that a check can fail. One module per area; `mutants` imports them all.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from enginewire.conformance.reference.server import Reference

R = TypeVar("R", bound="type[Reference]")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken server, and the keys of exactly those checks that have to fail on it."""

    name: str
    kills: tuple[str, ...]
    server: type[Reference]


_mutants: dict[str, Mutant] = {}


def mutant(name: str, *, kills: str | tuple[str, ...]) -> Callable[[R], R]:
    """Register a subclass of Reference under a name that says what is wrong with it."""

    def register(server: R) -> R:
        if name in _mutants:
            raise ValueError(f"two mutants are called {name}")
        _mutants[name] = Mutant(name, (kills,) if isinstance(kills, str) else kills, server)
        return server

    return register


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every mutant of the kit, by name."""
    for module in pkgutil.iter_modules(__path__):
        if module.name != "__main__":
            importlib.import_module(f"{__name__}.{module.name}")
    return tuple(_mutants[name] for name in sorted(_mutants))
