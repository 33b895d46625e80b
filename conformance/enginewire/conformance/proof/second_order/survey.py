"""Second-order mutants under the kit: a drawn sample of them, and which of them something notices.

Exactness cannot be asked of them: a bug that shows in one stream of ten is seen by whoever meets that stream.
But what fails has to be about what the first mutant breaks.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Final

from enginewire.conformance.mutants import Mutant
from enginewire.conformance.proof.second_order.draw import Pair, Standing, named, pairs, standing
from enginewire.conformance.running.accompanied import IN_COMPANY
from enginewire.conformance.running.outcome import FAILED, Report, Status
from enginewire.conformance.running.verdict import SEEN

SAMPLE: Final = 40
"""How many are judged in a whole self-test, unless it is said."""

TOGETHER: Final = 8
DRAWN: Final = "drawn"
BESIDE: Final = ("mixed", "guided")
KILLING: Final = FAILED | {Status.WARN}


class Breadth(Enum):
    """How much of the kit a mutant meets, the quickest first."""

    OWN = "the areas that it breaks, and what is drawn"
    BESIDE = "the same in company, and mixes"
    ALL = "everything"


Judge = Callable[[Mutant, Breadth], Awaitable[Report]]
"""The kit against a mutant."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """What became of one second-order mutant. `surprises`: what failed and is not about what it breaks."""

    name: str
    failed: tuple[str, ...]
    surprises: tuple[str, ...]
    faults: tuple[str, ...]
    seconds: float

    @property
    def is_killed(self) -> bool:
        """True when anything failed."""
        return bool(self.failed)

    @property
    def line(self) -> str:
        """One line of the matrix."""
        verdict = "killed" if self.is_killed else "FAULT" if self.faults else "LIVES"
        odd = f"  SURPRISES {', '.join(self.surprises)}" if self.surprises else ""
        faults = f"  faults {self.faults}" if self.faults else ""
        return f"{verdict:6} {self.name:60} {', '.join(self.failed)}{odd}{faults}  {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Sample:
    """The first live pairs of a seed, and what was drawn for them."""

    seed: int
    live: tuple[Pair, ...]
    drawn: Counter[Standing]

    @property
    def line(self) -> str:
        """How many pairs were no mutants of their own, and why."""
        others = [
            f"{number} {each.value}" for each, number in self.drawn.items() if each is not Standing.LIVE
        ]
        drawn = f"{self.drawn.total()} pairs drawn with seed {self.seed}, {len(self.live)} of them live"
        return "; ".join([drawn, *others])


def wanted(options: argparse.Namespace, *, is_whole: bool) -> int:
    """How many are to be judged: as many as was said, or a few when the whole matrix is."""
    if options.second_order is not None:
        return int(options.second_order)
    return SAMPLE if is_whole else 0


def survey(count: int, judge: Judge, options: argparse.Namespace) -> dict[str, object]:
    """Draw so many, judge them, print them; returns what the summary says of them."""
    drawn = sample(options.seed, count, options.workers)
    print(drawn.line)
    done = list(noticed(drawn.live, judge, options.quick, options.workers))
    for each in sorted(done, key=lambda each: each.name):
        print(each.line)
    killed = sum(each.is_killed for each in done)
    print(f"{len(done)} second-order mutants, {killed} of them killed")
    return summary(drawn, done)


def sample(seed: int, count: int, workers: int) -> Sample:
    """The first `count` live pairs of a seed; all there are where there are no more."""
    live, drawn = list[Pair](), Counter[Standing]()
    for pair, found in _standings(pairs(seed), workers):
        drawn[found] += 1
        live += [pair] if found is Standing.LIVE else []
        if len(live) == count:
            break
    return Sample(seed, tuple(live), drawn)


def noticed(some: Sequence[Pair], judge: Judge, quick: bool, workers: int) -> Iterator[Noticed]:
    """The kit against each of them, as they end."""
    names = [pair.name for pair in some]
    shares = [names[start::workers] for start in range(workers)]
    if workers < 2:
        yield from _judged(names, judge, quick)
        return
    with _pool(workers) as pool:
        for done in pool.map(_judged, shares, [judge] * workers, [quick] * workers):
            yield from done


def summary(drawn: Sample, done: Sequence[Noticed]) -> dict[str, object]:
    """What `self-test --json` says of them."""
    return {
        "second_order_mutants": len(done),
        "second_order_kills": sum(each.is_killed for each in done),
        "second_order_seed": drawn.seed,
        "second_order_drawn": {each.name.lower(): number for each, number in drawn.drawn.items()},
        "second_order_survivors": sorted(each.name for each in done if not each.is_killed),
        "second_order_surprises": {each.name: list(each.surprises) for each in done if each.surprises},
        "second_order_faults": {each.name: list(each.faults) for each in done if each.faults},
    }


def is_about(key: str, mutant: Mutant) -> bool:
    """True for what may fail: what the first mutant names, and what is drawn or seen of the same areas.

    A mix of everything may show anything.
    """
    named_ones = {*mutant.kills, *mutant.also}
    area, variant = key[:3], key.rpartition("/")[2]
    is_beside = variant in (SEEN, DRAWN, IN_COMPANY)
    return variant in BESIDE or key in named_ones or (is_beside and area in {one[:3] for one in named_ones})


async def notice(pair: Pair, judge: Judge, quick: bool) -> Noticed:
    """The kit against one; if `quick`, its own areas first, and more only where those see nothing."""
    started, mutant = time.monotonic(), pair.mutant()
    for breadth in Breadth if quick else (Breadth.ALL,):
        report = await judge(mutant, breadth)
        if failed := _failures(report):
            break
    faults = [each for each in report.outcomes if each.status is Status.ERROR]
    return Noticed(
        name=pair.name,
        failed=failed,
        surprises=tuple(key for key in failed if not is_about(key, mutant)),
        faults=(
            *(f"{each.key}: {each.message}" for each in faults),
            *([report.unreachable] if report.unreachable else []),
        ),
        seconds=time.monotonic() - started,
    )


def _failures(report: Report) -> tuple[str, ...]:
    return tuple(each.key for each in report.outcomes if each.status in KILLING)


def _standings(some: Sequence[Pair], workers: int) -> Iterator[tuple[Pair, Standing]]:
    if workers < 2:
        yield from ((pair, standing(pair)) for pair in some)
        return
    with _pool(workers) as pool:
        step = 4 * workers
        for start in range(0, len(some), step):
            part = some[start : start + step]
            yield from zip(part, pool.map(_standing_of, [pair.name for pair in part]), strict=True)


def _standing_of(name: str) -> Standing:
    return standing(named()[name])


def _judged(names: Sequence[str], judge: Judge, quick: bool) -> list[Noticed]:
    return asyncio.run(_all_judged([named()[name] for name in names], judge, quick))


async def _all_judged(some: Iterable[Pair], judge: Judge, quick: bool) -> list[Noticed]:
    slots = asyncio.Semaphore(TOGETHER)

    async def one(pair: Pair) -> Noticed:
        async with slots:
            return await notice(pair, judge, quick)

    return list(await asyncio.gather(*map(one, some)))


def _pool(workers: int) -> ProcessPoolExecutor:
    # A fork would take the gRPC threads of this process with it.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
