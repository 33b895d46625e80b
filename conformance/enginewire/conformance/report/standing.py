"""The words for how far a server is, the same in all reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from enginewire.conformance.report.verdict import AREAS
from enginewire.conformance.requirements.levels import NO_LEVEL, Level
from enginewire.conformance.running.outcome import Report
from enginewire.conformance.running.standing import Judged, Proof, Standing, standing

MOST_NAMED: Final = 6
"""More ids than this in a line, and nobody reads them."""

MOST_CAPABILITIES: Final = 4
"""That a badge has room for."""


def lines(report: Report) -> list[str]:
    """For people: the level or the profile, what of it could not be judged, what the next one lacks."""
    where = standing(report)
    return [*_lines(where)] if where else []


def short(report: Report) -> str:
    """For a badge: `level 2 + seed, logprobs`, `bare`; empty for a server that has reached neither."""
    where = standing(report)
    if not where or not (where.level or (where.profile and not where.missing)):
        return ""
    capabilities = where.capabilities
    many = len(capabilities) > MOST_CAPABILITIES
    added = f"{len(capabilities)} capabilities" if many else ", ".join(capabilities)
    excepted = " except launch" if where.needs_launch else ""
    reached = where.profile or f"level {where.level}{excepted}"
    return reached + (f" + {added}" if added else "")


def document(report: Report) -> dict[str, object] | None:
    """For programs."""
    where = standing(report)
    if not where:
        return None
    return {
        "level": where.level,
        "name": name(where.level),
        "profile": where.profile,
        "not_judged": [_fact(each) for each in where.not_judged],
        "missing": [_fact(each) for each in where.missing],
        "capabilities": list(where.capabilities),
    }


def _lines(where: Standing) -> Iterator[str]:
    if not where.is_known:
        return
    yield f"profile: {_kept(where)}" if where.profile else f"level: {_reached(where)}"
    if others := [each for each in where.not_judged if each.proof is Proof.NOT_APPLICABLE]:
        yield f"not judged at this server: {', '.join(f'{e.requirement.id} ({e.reason})' for e in others)}"
    if where.missing and not where.profile:
        did_run = any(each.proof is not Proof.NOT_RUN for each in where.missing)
        needs = "lacks" if did_run else "asks for what did not run,"
        yield f"level {where.level + 1} ({name(where.level + 1)}) {needs} {_areas(where.missing)}"
    if where.capabilities:
        yield f"capabilities: {', '.join(where.capabilities)}"


def _kept(where: Standing) -> str:
    return f"{where.profile}, which lacks {_areas(where.missing)}" if where.missing else where.profile


def _reached(where: Standing) -> str:
    if where.level == NO_LEVEL:
        return "none yet"
    excepted = f", except what needs --launch, {_areas(where.needs_launch)}" if where.needs_launch else ""
    return f"{where.level} ({name(where.level)}){excepted}"


def _areas(lacking: Sequence[Judged]) -> str:
    ids = [each.requirement.id for each in lacking]
    if len(ids) <= MOST_NAMED:
        return f"{len(ids)}: {', '.join(ids)}"
    areas: dict[str, int] = {}
    for identifier in ids:
        areas[identifier[:3]] = areas.get(identifier[:3], 0) + 1
    return f"{len(ids)}: " + ", ".join(f"{AREAS.get(area, area)} {number}" for area, number in areas.items())


def name(level: int) -> str:
    """What a level is called."""
    return Level(level).name.lower() if level else "none"


def _fact(judged: Judged) -> dict[str, str]:
    return {"id": judged.requirement.id, "why": judged.proof.value, "reason": judged.reason}
