"""What became of the mutants: a line for each, one summary for programs, and the verdict about the kit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginewire.conformance.checks import all_checks
from enginewire.conformance.client_side.checks import client_checks
from enginewire.conformance.report.verdict import tally
from enginewire.conformance.running.outcome import ExitCode, Report


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of one mutant."""

    name: str
    expected: tuple[str, ...]
    failed: tuple[str, ...]
    faults: tuple[str, ...]
    seconds: float
    surprises: tuple[str, ...] = ()
    """What the checks said that should not have failed."""
    in_passing: tuple[str, ...] = ()
    """What the monitor saw of the same ids, or of others that the mutant names: no surprise, and no proof."""

    @property
    def is_killed(self) -> bool:
        """True when every check that should fail did."""
        return set(self.expected) <= set(self.failed)

    @property
    def is_exact(self) -> bool:
        """True when nothing else failed."""
        return set(self.expected) == set(self.failed) and not self.faults


def line(kill: Kill) -> str:
    """One line of the matrix."""
    verdict = "exact" if kill.is_exact else "MORE" if kill.is_killed else "FAULT" if kill.faults else "ALIVE"
    others = [key for key in kill.failed if key not in kill.expected]
    extra = f"  also {', '.join(others)}" if others else ""
    faults = f"  faults {kill.faults}" if kill.faults else ""
    return f"{verdict:5} {kill.name:34} {', '.join(kill.expected)}{extra}{faults}  {kill.seconds:.1f} s"


def show_reference(report: Report) -> None:
    """What a correct server got."""
    print(report.unreachable or f"{report.engine}: {tally(report)} in {report.seconds:.1f} s")
    for outcome in report.unexpected:
        print(f"  {outcome.status.value} {outcome.key}: {outcome.message} {outcome.seen}")


def summary_of(
    kills: list[Kill], references: Sequence[Report], passes: dict[str, int], seconds: float
) -> dict[str, object]:
    """Everything that was found, for a program to read."""
    proven = {key for kill in kills if kill.is_killed for key in kill.expected}
    # The ERR-17 checks are one function with a table behind it: one mutant proves them all.
    keys = {"ERR-17" if check.unless and check.gate == "" else check.key for check in all_checks()}
    keys |= {check.key for check in client_checks()}
    unkilled = sorted(key for key in keys if not any(_proves(done, key) for done in proven))
    return {
        "checks": len(keys),
        "mutants": len(kills),
        "unkilled_checks": unkilled,
        "exact_kills": sum(kill.is_exact for kill in kills),
        "inexact": sorted(kill.name for kill in kills if not kill.is_exact),
        "alive": sorted(kill.name for kill in kills if not kill.is_killed),
        "failed_by_reference": [outcome.key for reference in references for outcome in reference.unexpected],
        "unreachable": [reference.unreachable for reference in references if reference.unreachable],
        "adversary_passes": passes,
        "seconds": round(seconds, 1),
        "kills": {kill.name: list(kill.failed) for kill in kills},
        "seen": {kill.name: list(kill.in_passing) for kill in kills if kill.in_passing},
        "expected": {kill.name: list(kill.expected) for kill in kills},
    }


def _proves(done: str, key: str) -> bool:
    return done == key or (key == "ERR-17" and done.startswith("ERR-17/"))


def show(summary: dict[str, object], *, is_whole: bool) -> None:
    """The totals."""
    print(f"{summary['checks']} checks, {summary['mutants']} mutants, {summary['exact_kills']} exact kills")
    if is_whole:
        print(f"checks that no mutant kills: {summary['unkilled_checks'] or 'none'}")
    print(f"{summary['seconds']} s")


def verdict_of(summary: dict[str, object], *, is_whole: bool) -> int:
    """The exit code: 0 when every kill is exact and the correct servers pass."""
    wrong = ["inexact", "failed_by_reference", "unreachable", *(["unkilled_checks"] if is_whole else [])]
    passes = summary["adversary_passes"]
    passed = isinstance(passes, dict) and any(passes.values())
    return ExitCode.VIOLATION if passed or any(summary[name] for name in wrong) else ExitCode.CONFORMANT
