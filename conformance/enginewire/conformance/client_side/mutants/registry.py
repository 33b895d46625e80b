"""Backends that each break one rule: the reference with about one method overridden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.client_side.reference.text import ReferenceChoice

PREFIX: Final = "client/"

B = TypeVar("B", bound="type[ReferenceBackend] | type[ReferenceChoice]")


@dataclass(frozen=True, slots=True)
class ClientMutant:
    """A broken backend, and the keys of exactly those checks that have to fail on it."""

    name: str
    kills: tuple[str, ...]
    backend: type[ReferenceBackend]


_mutants: dict[str, ClientMutant] = {}


def client_mutant(name: str, *, kills: str | tuple[str, ...]) -> Callable[[B], B]:
    """Register a subclass of ReferenceBackend, or of its choices, under a name that says what is wrong.

    The prefix tells it apart from a broken server of the same name.
    """

    def register(broken: B) -> B:
        full = f"{PREFIX}{name}"
        if full in _mutants:
            raise ValueError(f"two mutants are called {full}")
        _mutants[full] = ClientMutant(full, (kills,) if isinstance(kills, str) else kills, _backend(broken))
        return broken

    return register


def _backend(broken: type[ReferenceBackend] | type[ReferenceChoice]) -> type[ReferenceBackend]:
    if issubclass(broken, ReferenceBackend):
        return broken
    return type(broken.__name__, (ReferenceBackend,), {"choice_class": broken})


def registered() -> tuple[ClientMutant, ...]:
    """What was registered so far, in order."""
    return tuple(_mutants[key] for key in sorted(_mutants))
