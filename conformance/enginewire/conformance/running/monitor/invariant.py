"""What an invariant is, and the decorators that register those of each kind.

Knows nothing about what is looked at and about who looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from enginewire.conformance.running.monitor.facts import Answer, Failure, Seen
    from enginewire.conformance.running.monitor.handles import Handles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Invariant(Generic[T]):
    """One sentence of the contract as it can be judged without a scenario.

    `function` raises Violation. `needs`: ids that have to hold for the same thing, and in their own checks:
    without them this would say nothing.
    """

    id: str
    function: Callable[[T], None]
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it demands."""
        return self.function.__name__


ANSWERS: Final[list[Invariant[Answer]]] = []
FAILURES: Final[list[Invariant[Failure]]] = []
CALLS: Final[list[Invariant[Seen]]] = []
STREAMS: Final[list[Invariant[Handles]]] = []

Register = Callable[[Callable[[T], None]], Callable[[T], None]]


def of_answers(identifier: str, *, needs: tuple[str, ...] = ()) -> Register[Answer]:
    """Register what holds for the answer to each request, over either RPC."""
    return _register(ANSWERS, identifier, needs)


def of_failures(identifier: str, *, needs: tuple[str, ...] = ()) -> Register[Failure]:
    """Register what holds for each status other than OK."""
    return _register(FAILURES, identifier, needs)


def of_calls(identifier: str, *, needs: tuple[str, ...] = ()) -> Register[Seen]:
    """Register what holds for each RPC."""
    return _register(CALLS, identifier, needs)


def of_streams(identifier: str, *, needs: tuple[str, ...] = ()) -> Register[Handles]:
    """Register what holds for each multiplexed stream, taken apart."""
    return _register(STREAMS, identifier, needs)


def _register(kind: list[Invariant[T]], identifier: str, needs: tuple[str, ...]) -> Register[T]:
    def register(function: Callable[[T], None]) -> Callable[[T], None]:
        kind.append(Invariant(identifier, function, needs))
        return function

    return register
