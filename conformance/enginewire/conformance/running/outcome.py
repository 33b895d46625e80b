"""What became of each check, and the one verdict that follows from all of them.

Every report and the exit code come from here, so they cannot disagree. Runs nothing, prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from enginewire.conformance.requirements.requirement import Requirement
from enginewire.conformance.wire.exchange import Exchange


class Status(Enum):
    """The verdict of one check; the values are what reports print."""

    PASS = "PASS"  # noqa: S105  # not a password
    FAIL = "FAIL"
    WARN = "WARN"
    """A SHOULD that does not hold; a failure under --strict."""
    NEG_PASS = "NEG-PASS"  # noqa: S105  # not a password
    """The capability is not advertised, and a request that uses it is refused as it must be."""
    NOT_APPLICABLE = "N/A"
    BLOCKED = "BLOCKED"
    """A prerequisite failed, so that a result would say nothing."""
    NOT_RUN = "NOT-RUN"
    XFAIL = "XFAIL"
    XPASS = "XPASS"
    FLAKY = "FLAKY"
    """Not the same result in all repetitions."""
    ERROR = "ERROR"
    """A fault of the kit, which says nothing about the target."""


class ExitCode(IntEnum):
    """What the program says to its caller."""

    CONFORMANT = 0
    VIOLATION = 1
    USAGE = 2
    UNREACHABLE = 3
    KIT_FAULT = 4
    NOTHING_RAN = 5
    DISTURBED = 6
    INTERRUPTED = 130
    """By SIGINT, as from Ctrl-C."""
    TERMINATED = 143
    """By SIGTERM."""


NEEDS_LAUNCH = "needs --launch"
"""Part of the message of what only --launch lets the kit judge."""

IN_PART = "for want of time"
"""How the message of a PASS begins that rests on less than usual."""

NO_VERDICT = {
    ExitCode.NOTHING_RAN: "nothing ran",
    ExitCode.DISTURBED: "somebody else used the server, and some checks failed meanwhile",
}
"""Why outcomes come to no verdict."""

FAILED = frozenset({Status.FAIL, Status.XPASS, Status.FLAKY})
RAN = frozenset({Status.PASS, Status.FAIL, Status.WARN, Status.XFAIL, Status.XPASS, Status.FLAKY})
UNEXPECTED = (Status.FAIL, Status.XPASS, Status.FLAKY, Status.ERROR, Status.WARN, Status.BLOCKED)
"""In the order in which a reader wants to see them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one check. `key` is the id, with a variant where an id has several checks."""

    key: str
    requirement: Requirement
    status: Status
    message: str = ""
    expected: str = ""
    seen: str = ""
    seconds: float = 0.0
    closed_gate: str = ""
    log: str = ""
    """What the server printed about an internal error that it answered with, where the kit launched it."""
    known: str = ""
    """Why it is known to fail, from the baseline."""
    traffic: str = ""
    """The check whose calls showed it, for what the monitor saw in passing."""
    is_disturbed: bool = False
    """It failed while somebody else used the server."""
    exchanges: Sequence[Exchange] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class CutShort:
    """Why a run ended before it was over, and the exit code for it. `detail` goes on with the reason."""

    reason: str
    code: ExitCode
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} {self.detail}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run. `invocation`: the options that lead to the same target again."""

    target: str
    invocation: str
    engine: str = ""
    bounds: str = ""
    outcomes: tuple[Outcome, ...] = ()
    seconds: float = 0.0
    profile: str = ""
    """The name of what it was judged as, where that is less than all of core."""
    watched: int = 0
    """Calls that went through the monitor."""
    strict: bool = False
    """A SHOULD that does not hold counts as a violation."""
    unreachable: str = ""
    """Why nothing could be judged; there are no outcomes then."""
    cut_short: CutShort | None = None
    """What was not judged before that is NOT-RUN."""

    @property
    def counts(self) -> Counter[Status]:
        """How many outcomes of each status."""
        return Counter(outcome.status for outcome in self.outcomes)

    @property
    def unexpected(self) -> list[Outcome]:
        """What deserves attention, worst first."""
        found = [outcome for outcome in self.outcomes if outcome.status in UNEXPECTED]
        return sorted(found, key=lambda outcome: (UNEXPECTED.index(outcome.status), outcome.key))

    @property
    def without_verdict(self) -> list[Outcome]:
        """Checks that ran and found that they have nothing to say about this target."""
        return [each for each in self.outcomes if each.status is Status.NOT_APPLICABLE and each.seconds]

    @property
    def no_verdict(self) -> str:
        """Why there is no verdict about the target; empty when there is one."""
        if self.unreachable or self.cut_short:
            return self.unreachable or str(self.cut_short)
        return NO_VERDICT.get(self.exit_code(), "")

    @property
    def is_conformant(self) -> bool:
        """True when something ran and nothing that ran broke a requirement."""
        return self.exit_code() is ExitCode.CONFORMANT

    def fails(self, outcome: Outcome) -> bool:
        """True when this outcome alone keeps the run from being conformant."""
        broken = FAILED | {Status.ERROR} | ({Status.WARN} if self.strict else set())
        return outcome.status in broken

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """The verdict; with `strict` as if the run had been strict."""
        if self.unreachable:
            return ExitCode.UNREACHABLE
        if self.cut_short:
            return self.cut_short.code
        statuses = set(self.counts)
        if Status.ERROR in statuses:
            return ExitCode.KIT_FAULT
        if statuses & FAILED or ((strict or self.strict) and Status.WARN in statuses):
            return ExitCode.VIOLATION
        if any(outcome.is_disturbed for outcome in self.outcomes):
            return ExitCode.DISTURBED
        return ExitCode.CONFORMANT if statuses & RAN else ExitCode.NOTHING_RAN
