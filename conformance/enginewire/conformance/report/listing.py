"""The list of requirements for a terminal. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from enginewire.conformance.requirements import Requirement
from enginewire.conformance.running.outcome import ExitCode


def show(requirements: Iterable[Requirement]) -> ExitCode:
    """Print a line for each."""
    for requirement in requirements:
        mark = "" if requirement.checks else "  (no check)"
        print(f"{requirement.id}  {requirement.level:6}  {requirement.profile:16}  {requirement.text}{mark}")
    return ExitCode.CONFORMANT
