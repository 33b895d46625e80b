"""Servers that each break one rule: the reference with about one method overridden.

A mutant proves that a check can fail. One module per area, in rooms like those of the checks; `mutants`
imports them all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.catalogue import Catalogue

if TYPE_CHECKING:
    from enginewire.conformance.client_side.reference.backend import ReferenceBackend

A = TypeVar("A")
R = TypeVar("R", bound=type[Reference])
Kills = str | tuple[str, ...]
Change = Callable[[A], None]
"""Of an answer, in place."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken server or backend, and the keys of exactly those checks that have to fail on it.

    `also`: what the monitor may see beside `ID/seen` of the ids in `kills`. `traffic`: patterns of the checks
    in whose calls it shows, where the areas of `kills` would not do.
    """

    name: str
    kills: tuple[str, ...]
    server: type[Reference] | type[ReferenceBackend]
    also: tuple[str, ...] = ()
    traffic: tuple[str, ...] = ()


MUTANTS: Final = Catalogue[Mutant](__name__)


def mutant(name: str, *, kills: Kills, also: Kills = (), traffic: Kills = ()) -> Callable[[R], R]:
    """Register a subclass of Reference under a name that says what is wrong with it."""

    def register(server: R) -> R:
        MUTANTS.add(name, Mutant(name, _all(kills), server, _all(also), _all(traffic)))
        return server

    return register


def _all(keys: Kills) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys


def changed(
    method: Callable[..., A], name: str, *, kills: Kills, also: Kills = (), traffic: Kills = ()
) -> Callable[[Change[A]], Change[A]]:
    """Register a server that makes this change to what `method` of Reference returns."""

    def register(change: Change[A]) -> Change[A]:
        def override(server: Reference, *given: object) -> A:
            answer = method(server, *given)
            change(answer)
            return answer

        overrides = {method.__name__: override, "__doc__": change.__doc__}
        server = type(change.__name__, (Reference,), overrides)
        mutant(name, kills=kills, also=also, traffic=traffic)(server)
        return change

    return register


def each_changed(
    method: Callable[..., AsyncIterator[A]], name: str, *, kills: Kills, also: Kills = (), traffic: Kills = ()
) -> Callable[[Change[A]], Change[A]]:
    """Register a server that makes this change to each part of what `method` of Reference streams."""

    def register(change: Change[A]) -> Change[A]:
        async def override(server: Reference, *given: object) -> AsyncIterator[A]:
            async for part in method(server, *given):
                change(part)
                yield part

        overrides = {method.__name__: override, "__doc__": change.__doc__}
        server = type(change.__name__, (Reference,), overrides)
        mutant(name, kills=kills, also=also, traffic=traffic)(server)
        return change

    return register


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every broken server, by name."""
    return MUTANTS.all()
