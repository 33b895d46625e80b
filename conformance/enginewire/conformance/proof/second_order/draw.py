"""Pairs of a mutant and a condition, drawn from a seed, and which of them are mutants of their own.

A pair is live when the workload gets another answer than from the correct server, and another one than from
the mutant without a condition. Nothing but that workload decides it: no check and no invariant is asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache

from enginewire.conformance.mutants import Mutant, mutants
from enginewire.conformance.proof.second_order.conditions import CONDITIONS, Condition, correct_server
from enginewire.conformance.proof.second_order.probe import Said, transcript
from enginewire.conformance.proof.second_order.subjects import KnowsItsSubject
from enginewire.conformance.proof.second_order.when import at_times, overridden, when
from enginewire.conformance.reference.server import Reference

JOINT = "@"


class Standing(Enum):
    """What a pair is; only those that are live are mutants."""

    LIVE = "live"
    NOT_SEEN = "the workload does not show the mutant itself"
    NEVER = "the condition never holds in what the mutant changes"
    SAME_AS_CORRECT = "no answer changes"
    SAME_AS_FIRST = "the same answers as without the condition"
    ALWAYS = "something changes without the condition"


@dataclass(frozen=True, slots=True)
class Pair:
    """A mutant that is wrong only where a condition holds."""

    first: Mutant
    condition: Condition

    @property
    def name(self) -> str:
        """`total_wrong@resumed`."""
        return f"{self.first.name}{JOINT}{self.condition.name}"

    def mutant(self) -> Mutant:
        """As one that the kit can be run against."""
        first = self.first
        return Mutant(self.name, first.kills, when(self.condition, first), first.also, first.traffic)


def pairs(seed: int) -> list[Pair]:
    """All there are, in an order drawn from the seed."""
    found = [Pair(first, condition) for first in mutants() if overridden(first) for condition in CONDITIONS]
    random.Random(seed).shuffle(found)
    return found


@cache
def named() -> dict[str, Pair]:
    """All there are by name."""
    return {pair.name: pair for pair in pairs(0)}


def standing(pair: Pair) -> Standing:
    """Whether a pair is live, or why not."""
    first, in_runs = pair.first, pair.condition.in_runs
    correct, always = _correct(in_runs), _always(first, in_runs)
    if always == correct:
        return Standing.NOT_SEEN
    at_rest, held = _at_rest(first, in_runs)
    if at_rest != correct:
        return Standing.ALWAYS
    if pair.condition.name not in held:
        return Standing.NEVER
    said = _said(when(pair.condition, first), correct, always)
    if said == correct:
        return Standing.SAME_AS_CORRECT
    return Standing.SAME_AS_FIRST if said == always else Standing.LIVE


@cache
def _correct(in_runs: bool) -> list[Said]:
    return _said(correct_server(in_runs))


@cache
def _always(first: Mutant, in_runs: bool) -> list[Said]:
    return _said(at_times(lambda server, method, given: True, first, correct_server(in_runs)))


@cache
def _at_rest(first: Mutant, in_runs: bool) -> tuple[list[Said], frozenset[str]]:
    """What it says while no call of it is wrong, and the conditions that held in calls that it changes."""
    held = set[str]()

    def never(server: KnowsItsSubject, method: str, given: tuple[object, ...]) -> bool:
        due = [condition for condition in CONDITIONS if condition.name not in held]
        subjects = server.subjects(given) if due else []
        held.update(each.name for each in due if any(map(each.holds, subjects)))
        return False

    return _said(at_times(never, first, correct_server(in_runs))), frozenset(held)


def _said(make: Callable[[], Reference], *known: list[Said]) -> list[Said]:
    return asyncio.run(transcript(make, *known))
