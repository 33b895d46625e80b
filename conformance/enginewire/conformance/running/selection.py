"""Which checks the user wants. Knows requirements by name only; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from enginewire.conformance.requirements.levels import NO_LEVEL, level_of
from enginewire.conformance.requirements.profiles import BARE, is_of_any
from enginewire.conformance.requirements.requirement import Requirement, requirements
from enginewire.conformance.running.outcome import NEEDS_LAUNCH
from enginewire.conformance.running.registry import Check, Phase
from enginewire.v1.revision import CONTRACT_REVISION


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns are globs over ids, such as `STR-*`; empty means all."""

    profiles: Sequence[str] = ()
    level: int = NO_LEVEL
    """Core up to this level and no capabilities; NO_LEVEL leaves nothing out."""
    run: Sequence[str] = ()
    skip: Sequence[str] = ()
    phases: frozenset[Phase] = frozenset({Phase.SAFE, Phase.LOAD})
    repeat: int = 1
    one_by_one: bool = False
    judges_again: bool = True
    """What measures time, when it fails while the machine is busy. A proof counts the first verdict."""
    revision: int = CONTRACT_REVISION
    """Of the contract: what came later is not judged."""

    def why_not(self, requirement: Requirement, check: Check) -> str:
        """Why a check is not to run; empty when it is."""
        names = (requirement.id, check.key)
        if requirement.since > self.revision:
            return f"since revision {requirement.since}"
        if not is_of_any(requirement, self.profiles):
            return "not in the chosen profiles"
        if self._is_beyond(requirement):
            return f"not of level {self.level}"
        if self.run and not _matches(names, self.run):
            return "not chosen by --run"
        if _matches(names, self.skip):
            return "left out by --skip"
        if check.phase not in self.phases:
            return f"ends the server: {NEEDS_LAUNCH} or --allow-destructive"
        return ""

    def leaves_out(self, check: Check) -> bool:
        """True for what was seen in passing and is not wanted; that nobody chose it is no reason.

        Unless the server is not meant to keep it, or not yet: then there is nothing to see.
        """
        requirement = requirements()[check.id]
        is_late = requirement.since > self.revision
        is_foreign = self.is_bare and not is_of_any(requirement, self.profiles)
        return (
            is_late
            or is_foreign
            or self._is_beyond(requirement)
            or _matches((check.id, check.key), self.skip)
        )

    def _is_beyond(self, requirement: Requirement) -> bool:
        """No part of the chosen level."""
        return bool(self.level) and not NO_LEVEL < level_of(requirement) <= self.level

    @property
    def is_bare(self) -> bool:
        """The server is judged as a bare engine."""
        return BARE in self.profiles


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
