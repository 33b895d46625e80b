"""The smallest case that still fails: what the fault does not need is taken away by steps. Asks nobody."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from enginewire.conformance.oracle.case import LISTS, Case

C = TypeVar("C")
T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """How much shrinking may cost: `steps` cases asked, until `deadline` on the monotonic clock."""

    steps: int
    deadline: float

    @property
    def is_over(self) -> bool:
        """True when the case is small enough as it is."""
        return self.steps <= 0 or time.monotonic() >= self.deadline


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[C, T]):
    """The smallest case found, and what it did; None when not even the first one failed again."""

    case: C
    fault: T | None


async def shrink(
    case: C,
    smaller: Callable[[C], Iterable[C]],
    is_possible: Callable[[C], bool],
    fails: Callable[[C], Awaitable[T | None]],
    patience: Patience,
) -> Shrunk[C, T]:
    """`smaller` gives the cases that are one step simpler; `fails` asks for a case and returns the fault
    when it is the same one.
    """
    fault = await fails(case)
    if fault is None:
        return Shrunk(case, None)
    tried = {case}
    while True:
        for other in smaller(case):
            if patience.is_over:
                return Shrunk(case, fault)
            if other in tried or not is_possible(other):
                continue
            tried.add(other)
            patience.steps -= 1
            if found := await fails(other):
                case, fault = other, found
                break
        else:
            return Shrunk(case, fault)


def smaller(case: Case) -> Iterator[Case]:
    """Every case that is one step simpler, the largest steps first."""
    for name in ("together", "multiplexed", "is_first", "ignore_eos"):
        if getattr(case, name):
            yield case.changed(name, False)
    if case.finished:
        yield replace(case, finished=())
    if case.resumed:
        yield replace(case, resumed=(), finished=())
    if case.n > 1:
        yield fewer_choices(case, 1)
        yield fewer_choices(case, case.n - 1)
    for name in LISTS:
        if getattr(case, name):
            yield case.changed(name, ())
    for name in ("beyond", "stream_interval", "min_tokens", "prompt"):
        if getattr(case, name):
            yield case.changed(name, 0)
    yield from _shorter(case)


def fewer_choices(case: Case, count: int) -> Case:
    """The first ones of them."""
    finished = tuple(index for index in case.finished if index < count)
    return replace(case, n=count, resumed=case.resumed[:count], finished=finished)


def _shorter(case: Case) -> Iterator[Case]:
    """Half of a list, one id less, fewer tokens."""
    for name in LISTS:
        ids: tuple[int, ...] = getattr(case, name)
        half = len(ids) // 2
        parts = [ids[half:], ids[:half]] if half > 1 else []
        parts += [ids[:place] + ids[place + 1 :] for place in range(len(ids))]
        yield from (case.changed(name, part) for part in parts if part)
    for longest in (1, 2, case.max_tokens // 2, case.max_tokens - 1):
        if longest < case.max_tokens:
            yield replace(case, max_tokens=longest)
    if case.min_tokens > 1:
        yield replace(case, min_tokens=case.min_tokens - 1)
    if len(case.resumed) > 1 and not case.finished:
        yield replace(case, resumed=case.resumed[:1])
    for place, cut in enumerate(case.resumed):
        for shorter in {1, cut - 1} - {0, cut}:
            yield replace(case, resumed=(*case.resumed[:place], shorter, *case.resumed[place + 1 :]))
