"""How far a server is: the level it reached or the profile it keeps, and the capabilities it has proved.

Only what ran and passed counts. A refusal, a requirement that says nothing about this server and one that did
not run are no pass; those of the level that is reached are named. Computes; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from enginewire.conformance.requirements.levels import LAUNCH, NO_LEVEL, OUTSIDE, Level, level_of
from enginewire.conformance.requirements.profiles import BARE, OF_BARE, is_of
from enginewire.conformance.requirements.requirement import Requirement
from enginewire.conformance.running.outcome import NEEDS_LAUNCH, Outcome, Report, Status


class Proof(Enum):
    """What all outcomes of one requirement say together."""

    HOLDS = "holds"
    BROKEN = "does not hold"
    NOT_APPLICABLE = "says nothing about this server"
    NEEDS_LAUNCH = "needs --launch"
    BLOCKED = "could not be judged"
    NOT_RUN = "did not run"


BROKEN = frozenset({Status.FAIL, Status.FLAKY, Status.ERROR, Status.XFAIL, Status.WARN})
PASSED = frozenset({Status.PASS, Status.XPASS})
EXCUSED = (Proof.NOT_APPLICABLE, Proof.NEEDS_LAUNCH)


@dataclass(frozen=True, slots=True)
class Judged:
    """One requirement and what its checks showed. `reason`: why it is not known to hold."""

    requirement: Requirement
    proof: Proof
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`level` is NO_LEVEL for a server that has not reached the first one, or was judged by a profile."""

    level: int
    profile: str = ""
    """What the server was judged as; it keeps that when nothing is missing."""
    not_judged: tuple[Judged, ...]
    """MUSTs of the levels reached that this run could not judge: without --launch, or of this server."""
    missing: tuple[Judged, ...]
    """MUSTs that the next level lacks, or the profile."""
    capabilities: tuple[str, ...]

    @property
    def needs_launch(self) -> tuple[Judged, ...]:
        """What of the level could only be judged with --launch."""
        return tuple(each for each in self.not_judged if each.proof is Proof.NEEDS_LAUNCH)

    @property
    def is_known(self) -> bool:
        """False where the run left out requirements of the first level, so that it cannot say."""
        return (
            bool(self.profile)
            or self.level > NO_LEVEL
            or all(each.proof is not Proof.NOT_RUN for each in self.missing)
        )


def standing(report: Report) -> Standing | None:
    """Where the judged server stands; None for a report about something without levels."""
    judged = _judged(report.outcomes)
    if report.profile == BARE:
        return _as_bare(judged)
    musts = [each for each in judged if level_of(each.requirement) and each.requirement.is_must]
    if not any(each.proof is not Proof.NOT_RUN for each in musts):
        return None
    reached, missing = NO_LEVEL, tuple[Judged, ...]()
    for level in Level:
        missing = tuple(each for each in musts if level_of(each.requirement) == level and _lacks(each))
        if missing:
            break
        reached = level
    return Standing(
        level=reached,
        not_judged=tuple(
            each for each in musts if level_of(each.requirement) <= reached and each.proof in EXCUSED
        ),
        missing=missing,
        capabilities=_capabilities(judged),
    )


def _as_bare(judged: Sequence[Judged]) -> Standing:
    musts = [each for each in judged if each.requirement.id in OF_BARE]
    return Standing(
        level=NO_LEVEL,
        profile=BARE,
        not_judged=tuple(each for each in musts if each.proof in EXCUSED),
        missing=tuple(each for each in musts if _lacks(each)),
        capabilities=_capabilities([each for each in judged if is_of(each.requirement, BARE)]),
    )


def _lacks(judged: Judged) -> bool:
    return judged.proof is not Proof.HOLDS and judged.proof not in EXCUSED


def _judged(outcomes: Sequence[Outcome]) -> list[Judged]:
    by_requirement: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_requirement.setdefault(outcome.requirement.id, []).append(outcome)
    return [_together(found) for found in by_requirement.values()]


def _together(outcomes: Sequence[Outcome]) -> Judged:
    """A requirement with several checks is as good as its worst; one that says nothing does not spoil it."""
    requirement = outcomes[0].requirement
    for proof, found in (
        (Proof.BROKEN, [each for each in outcomes if each.status in BROKEN]),
        (Proof.BLOCKED, [each for each in outcomes if each.status is Status.BLOCKED]),
        (Proof.NEEDS_LAUNCH, [each for each in outcomes if _needs_launch(each)]),
        (Proof.NOT_RUN, [each for each in outcomes if each.status is Status.NOT_RUN]),
    ):
        if found:
            return Judged(requirement, proof, found[0].message)
    if any(each.status in PASSED for each in outcomes):
        return Judged(requirement, Proof.HOLDS, "")
    return Judged(requirement, Proof.NOT_APPLICABLE, outcomes[0].message)


def _needs_launch(outcome: Outcome) -> bool:
    return outcome.closed_gate == LAUNCH or (
        outcome.status is Status.NOT_RUN and NEEDS_LAUNCH in outcome.message
    )


def _capabilities(judged: Sequence[Judged]) -> tuple[str, ...]:
    """The gates of which every MUST holds; of those without a MUST, every SHOULD."""
    by_gate: dict[str, list[Judged]] = {}
    for each in judged:
        if each.requirement.gate not in OUTSIDE:
            by_gate.setdefault(each.requirement.gate, []).append(each)
    return tuple(gate for gate, found in by_gate.items() if _is_whole(found))


def _is_whole(of_one_gate: Sequence[Judged]) -> bool:
    asked = [each for each in of_one_gate if each.requirement.is_must] or of_one_gate
    return all(each.proof is Proof.HOLDS for each in asked)
