"""A server that has the bug of a mutant only where a condition holds: `when(condition, mutant)`.

A mutant is the reference with about one method overridden. So each call of such a method is the one place
where it is decided whether the bug is there: the override runs, or the method of the correct server does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from enginewire.conformance.mutants import Mutant
from enginewire.conformance.proof.second_order.conditions import Condition, correct_server
from enginewire.conformance.proof.second_order.subjects import KnowsItsSubject
from enginewire.conformance.reference.server import Reference

CORRECT: Final = "enginewire.conformance.reference."
"""Where the classes of the correct server are."""

FACTS: Final = ("settings", "credentials")
"""What a server says of itself or is set up with: no call decides about it."""

MAKING: Final = ("serve", "shut_down", "handlers", "server_options", "streaming", "routes", "parts")
"""Methods that make the server: there is no request yet for which something could hold."""

Active = Callable[[KnowsItsSubject, str, tuple[object, ...]], bool]
"""Whether a call of this method with these arguments is to be wrong."""


def overridden(mutant: Mutant) -> tuple[str, ...]:
    """The methods of the reference that a mutant overrides; none for what cannot be wrong at times."""
    server = mutant.server
    if not issubclass(server, Reference) or _correct(server) is not Reference:
        return ()
    own = {name: thing for one in reversed(_own(server)) for name, thing in vars(one).items()}
    if any(name in own for name in (*FACTS, *MAKING)):
        return ()
    methods = (name for name, thing in own.items() if inspect.isfunction(thing) and name != "__init__")
    return tuple(sorted(name for name in methods if hasattr(Reference, name)))


def when(condition: Condition, mutant: Mutant) -> type[Reference]:
    """The mutant's bug, only where the condition holds for what the call is about."""

    def active(server: KnowsItsSubject, method: str, given: tuple[object, ...]) -> bool:
        return any(condition.holds(subject) for subject in server.subjects(given))

    return at_times(active, mutant, correct_server(condition.in_runs))


def at_times(active: Active, mutant: Mutant, base: type[Reference] = Reference) -> type[Reference]:
    """The mutant's bug in those calls alone for which `active` says so; elsewhere `base`."""
    assert issubclass(mutant.server, Reference)
    either = {name: _either(name, mutant.server, base, active) for name in overridden(mutant)}
    order = (mutant.server,) if base is Reference else (mutant.server, base)
    at_a_time = type(f"{mutant.server.__name__}AtTimes", order, either)
    return type(mutant.server.__name__, (KnowsItsSubject, at_a_time), {})


def _either(
    name: str, wrong: type[Reference], base: type[Reference], active: Active
) -> Callable[..., object]:
    broken, correct = getattr(wrong, name), getattr(base, name)

    # Of a coroutine or an asynchronous iterator as well: what is called here makes it, and decides for all.
    def either(self: KnowsItsSubject, *given: object, **named: object) -> object:
        is_wrong = self.is_made and active(self, name, given)
        return (broken if is_wrong else correct)(self, *given, **named)

    return either


def _own(server: type[Reference]) -> list[type]:
    """What is not of the correct server."""
    return [one for one in server.__mro__ if not one.__module__.startswith(CORRECT) and one is not object]


def _correct(server: type[Reference]) -> type:
    return next(one for one in server.__mro__ if one.__module__.startswith(CORRECT))
