"""Draws, asks and judges all cases of a run once, and says which requirement each kind of failure breaks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeVar

from enginewire.conformance.oracle.ask import Answer, Target
from enginewire.conformance.oracle.case import LISTS, Case
from enginewire.conformance.oracle.draw import draw
from enginewire.conformance.oracle.judge import Fault, judge, requirement
from enginewire.conformance.oracle.mistakes import Mistaken, mistaken
from enginewire.conformance.oracle.predict import is_possible
from enginewire.conformance.oracle.runs import TOKENS, at_the_end_of_the_window, target_of
from enginewire.conformance.oracle.shrink import Patience, shrink, smaller
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import NotApplicable, Violation

T = TypeVar("T")

VALID: Final = "INF-09"
"""What a valid request breaks that fails."""

LATE: Final = (VALID, "STR-02")
"""What an answer looks like that this machine held up: judged when it comes again."""

TOGETHER: Final = 16
FILLING: Final = 300_000
"""The first of the cases that fill the window: others than those that are asked elsewhere."""
SELDOM: Final = 8
"""Of all cases that are drawn, as many more fill the window."""
BEYOND: Final = (0, 0, 1, -1, 2**31)
"""Tokens that they ask for beyond the window, in turn; -1: they name no number."""

STEPS: Final = 120
"""Cases asked to make one failure small."""

PER_KIND: Final = 3
"""Failures of one kind that are looked into, where the smallest form of one does not explain the others."""

EFFORTS: Final = 1.2
"""For asking all cases; as many again for making failures small."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure in its smallest form: what it breaks, how, and the call that shows it."""

    id: str
    violation: Violation
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Failed:
    """A case that failed, with its number and those that were sent with it."""

    number: int
    case: Case
    fault: Fault
    answer: Answer
    beside: Sequence[Case]


async def findings(ctx: Context) -> list[Finding]:
    """All there is wrong, made once per session; the session is told what was drawn."""
    return await ctx.session.once("drawn", lambda: _findings(ctx))


async def _findings(ctx: Context) -> list[Finding]:
    client = ctx.session.client()
    try:
        target = await target_of(ctx, client)
    except Violation as violation:
        # Of one check, not of all: what a greedy run needs has been judged before.
        return [Finding(VALID, violation, client.exchanges[-1])]
    seed, wanted = ctx.session.options.seed, ctx.session.options.cases
    cases = {number: draw(seed, number, target.runs, target.offer) for number in range(1, wanted + 1)}
    failed, asked = list[Failed](), 0
    for numbers in in_time(ctx, _batches(cases)):
        asked += len(numbers)
        failed += await _ask(target, {number: cases[number] for number in numbers})
    many = f"{asked}" if asked == wanted else f"{asked} of {wanted}, for want of time"
    ctx.session.drawn = f"drawn cases: {many}, seed {seed}"
    deadline = time.monotonic() + EFFORTS * ctx.bounds.effort
    found = [each async for each in _explained(target, failed, deadline, seed)]
    found += await _at_the_end_of_the_window(ctx, client, seed, deadline)
    if wanted:
        # What comes of them the monitor sees; here nothing is known to compare it with.
        for some in in_time(ctx, parts(mistakes_of(target, seed))):
            await target.ask([each.case for each in some], [each.changes for each in some])
    return found


def mistakes_of(target: Target, seed: int) -> list[Mistaken]:
    """Those for a target; none for one that has a server in front of it, which refuses them."""
    ctx = target.ctx
    is_bare = ctx.session.options.is_bare
    return [] if is_bare else mistaken(seed, target.runs, target.offer, ctx.config)


async def _at_the_end_of_the_window(
    ctx: Context, client: Client, seed: int, deadline: float
) -> list[Finding]:
    """Who counts anything twice ends early there. What the window itself is, other checks say."""
    try:
        target = await at_the_end_of_the_window(ctx, client)
    except (NotApplicable, Violation):
        return []
    numbers = range(FILLING, FILLING + ctx.session.options.cases // SELDOM)
    beyond = (0,) if ctx.session.options.is_bare else BEYOND
    cases = {
        number: _filling(draw(seed, number, target.runs, target.offer), beyond[number % len(beyond)])
        for number in numbers
    }
    failed = list[Failed]()
    for some in in_time(ctx, parts(list(cases))):
        failed += await _ask(target, {number: cases[number] for number in some})
    return [each async for each in _explained(target, failed, deadline, seed)]


def _filling(case: Case, beyond: int) -> Case:
    """The same without anything that ends it early, `beyond`: and with more asked for than there is room."""
    for name in LISTS:
        case = case.changed(name, ())
    return replace(case, max_tokens=TOKENS, ignore_eos=True, together=True, beyond=beyond)


def in_time(ctx: Context, batches: Iterator[T]) -> Iterator[T]:
    """Those for which there is time, counted from the first one on."""
    deadline = time.monotonic() + EFFORTS * ctx.bounds.effort
    return takewhile(lambda _: time.monotonic() <= deadline, batches)


def _batches(cases: dict[int, Case]) -> Iterator[Sequence[int]]:
    """The numbers of cases that are sent together, then of each that is sent alone."""
    together = [number for number, case in cases.items() if case.together]
    yield from parts(together)
    yield from ([number] for number, case in cases.items() if not case.together)


def parts(some: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at a time as are sent together."""
    return (some[start : start + TOGETHER] for start in range(0, len(some), TOGETHER))


async def _ask(target: Target, cases: dict[int, Case]) -> list[Failed]:
    """Those of a batch that fail. What found no room beside the others is asked again alone."""
    answers = dict(zip(cases, await target.ask(list(cases.values())), strict=True))
    failed = []
    for number, case in cases.items():
        answer = answers[number]
        if answer.is_busy:
            [answer] = await target.ask([case])
        if fault := judge(case, answer, target.run_of(case), target.offer):
            beside = [other for other in cases.values() if other is not case]
            failed.append(Failed(number, case, fault, answer, beside))
    return failed


async def _explained(
    target: Target, failed: list[Failed], deadline: float, seed: int
) -> AsyncIterator[Finding]:
    """The failures of each kind in their smallest form, as long as it does not explain the others."""
    for rule in sorted({each.fault.rule for each in failed}):
        rest = sorted((each for each in failed if each.fault.rule == rule), key=_size)
        for place in range(PER_KIND):
            if not rest:
                break
            first, small = rest[0], await _smallest(target, rest[0], Patience(STEPS, deadline))
            if place and time.monotonic() >= deadline:
                break  # for want of time nobody knows whether it is another one
            if small is not first or rule not in LATE:
                yield _finding(small, first, seed)
            needed = set(small.case.options) - {"prompt"}
            rest = [each for each in rest[1:] if not needed <= set(each.case.options)]


async def _smallest(target: Target, failed: Failed, patience: Patience) -> Failed:
    async def fails(case: Case) -> Failed | None:
        beside = failed.beside if case.together else ()
        answer, *_ = await target.ask([case, *beside])
        fault = judge(case, answer, target.run_of(case), target.offer)
        same = fault and fault.rule == failed.fault.rule
        return Failed(failed.number, case, fault, answer, beside) if fault and same else None

    def possible(case: Case) -> bool:
        ids = target.offer.eos_token_ids
        return is_possible(case, target.run_of(case), ids, may_be_over=failed.fault.of_ended)

    return (await shrink(failed.case, smaller, possible, fails, patience)).fault or failed


def _finding(small: Failed, first: Failed, seed: int) -> Finding:
    again = "" if small is not first else ", once and not again"
    message = f"{small.fault.message} ({small.case.described}; case {first.number} of seed {seed}{again})"
    violation = Violation(message, expected=small.fault.expected, seen=small.fault.seen)
    return Finding(requirement(small.fault, small.case), violation, small.answer.exchange)


def _size(failed: Failed) -> tuple[bool, int, int]:
    """A multiplexed request that never ends takes long: those come last."""
    return failed.case.multiplexed, len(failed.case.options), failed.number
