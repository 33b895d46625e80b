"""Draws, plays and judges all cases of a run once, and says which requirement each kind of failure breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from enginewire.conformance.client_side.context import Backends, ClientContext
from enginewire.conformance.client_side.oracle.case import Case, from_json
from enginewire.conformance.client_side.oracle.draw import draw
from enginewire.conformance.client_side.oracle.judge import KINDS, Fault, judge, requirement
from enginewire.conformance.client_side.oracle.play import TOGETHER, Played, Stage
from enginewire.conformance.client_side.oracle.possible import is_possible
from enginewire.conformance.client_side.oracle.shrink import smaller
from enginewire.conformance.client_side.run_options import RunOptions
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.oracle.shrink import Patience, shrink
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import Violation

STEPS: Final = 400
"""Cases played to make one failure small."""

PER_KIND: Final = 3
"""Failures of one kind that are looked into, where the smallest form of one does not explain the others."""

SLOW: Final = ("told", "failed")
"""Kinds that each further case may wait long for."""

FEW_STEPS: Final = 8

SHARE: Final = 0.35
"""Of the time of a check for playing all cases; as much again for making failures small."""

BATCH: Final = 2 * TOGETHER


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure in its smallest form: what it breaks, how, and the calls that show it."""

    id: str
    violation: Violation
    exchanges: Sequence[Exchange]


@dataclass(frozen=True, slots=True)
class Failed:
    """A case that failed, with its number; 0 for one that was given."""

    number: int
    fault: Fault
    played: Played

    @property
    def case(self) -> Case:
        """What was played."""
        return self.played.case


async def findings(ctx: ClientContext) -> list[Finding]:
    """All there is wrong, made once per run."""
    return await ctx.backends.once("drawn", lambda: _findings(ctx.backends))


@lru_cache(maxsize=8)
def cases(options: RunOptions) -> Mapping[int, Case]:
    """By number. Raises ValueError for a case that nobody can play."""
    if not options.case:
        return {number: draw(options.seed, number) for number in range(1, options.cases + 1)}
    case = from_json(options.case)
    try:
        if is_possible(case):
            return {0: case}
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"no case: {error!r}") from error
    raise ValueError("the contract does not say what has to come of this case")


async def _findings(backends: Backends) -> list[Finding]:
    started, wanted = time.monotonic(), cases(backends.options)
    kinds = sorted({case.spaced for case in wanted.values()})
    contexts = {
        spaced: ClientContext(backends, await backends.shared(Facts(strips_first_space=spaced)))
        for spaced in kinds
    }
    stage = Stage(contexts)
    seconds = SHARE * max((ctx.bounds.check for ctx in contexts.values()), default=0.0)
    try:
        failed = await _play(stage, wanted, started + seconds)
        return [each async for each in _explained(stage, failed, started + 2 * seconds, backends.options)]
    finally:
        await stage.close()


async def _play(stage: Stage, wanted: Mapping[int, Case], deadline: float) -> list[Failed]:
    """Those that fail."""
    numbers, failed = list(wanted), list[Failed]()
    for begin in range(0, len(numbers), BATCH):
        if time.monotonic() > deadline:
            break
        batch = numbers[begin : begin + BATCH]
        found = await asyncio.gather(*(_one(stage, number, wanted[number]) for number in batch))
        failed += [each for each in found if each]
    return failed


async def _one(stage: Stage, number: int, case: Case) -> Failed | None:
    played = await stage.play(case)
    fault = judge(played)
    return Failed(number, fault, played) if fault else None


async def _explained(
    stage: Stage, failed: list[Failed], deadline: float, options: RunOptions
) -> AsyncIterator[Finding]:
    """The failures of each kind in their smallest form, as long as it does not explain the others."""
    for kind in KINDS:
        for _ in range(PER_KIND):
            if not (rest := [each for each in failed if each.fault.kind == kind]):
                break
            first = min(rest, key=_size)
            small = await _smallest(stage, first, Patience(FEW_STEPS if kind in SLOW else STEPS, deadline))
            yield _finding(small, first, options)
            needed = set(small.case.options)
            failed = [each for each in failed if each is not first and not needed <= set(each.case.options)]


async def _smallest(stage: Stage, failed: Failed, patience: Patience) -> Failed:
    async def fails(case: Case) -> Failed | None:
        found = await _one(stage, failed.number, case)
        return found if found and found.fault.kind == failed.fault.kind else None

    return (await shrink(failed.case, smaller, is_possible, fails, patience)).fault or failed


def _finding(small: Failed, first: Failed, options: RunOptions) -> Finding:
    origin = f"case {first.number} of seed {options.seed}, " if first.number else ""
    again = ", once and not again" if small is first else ""
    message = f"{small.fault.message} ({origin}--case '{small.case.as_json()}'{again})"
    violation = Violation(message, expected=small.fault.expected, seen=small.fault.seen)
    return Finding(requirement(small.fault, small.case), violation, small.played.exchanges)


def _size(failed: Failed) -> tuple[int, int, int]:
    return len(failed.case.options), sum(map(len, failed.case.tokens)), failed.number
