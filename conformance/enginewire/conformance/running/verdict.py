"""What becomes of one check: what it raises, or what several runs of it say together, as an Outcome.

The same for servers and backends. Knows nothing about the order of checks and about what they look at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from enginewire.conformance.requirements.requirement import Requirement, requirements
from enginewire.conformance.running.outcome import CutShort, Outcome, Status
from enginewire.conformance.running.registry import Check
from enginewire.conformance.session.session import Unreachable
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import NotApplicable, Violation

CLEANUP_SECONDS: Final = 10.0

SEEN: Final = "seen"
"""The variant of what the monitor finds: `USE-01/seen`."""

BROKEN: Final = frozenset({Status.FAIL, Status.BLOCKED, Status.ERROR, Status.FLAKY})
"""A prerequisite with one of these blocks what needs it."""


OF_BACKENDS: Final = "enginewire-conformance client judges backends"

KEPT_CALLS: Final = 8
"""Of a check that found nothing wrong: enough to show how it looks. All of a failure is evidence."""


class Evidence(Protocol):
    """What a check gets, of either side: it records the calls of the check."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """The calls."""

    async def close(self) -> None:
        """End what the check left running."""


async def judged(check: Check, context: Evidence, seconds: float) -> Outcome:
    """Run a check to its verdict, which `seconds` from now there has to be, with its calls; clean up."""
    started = time.monotonic()
    judged = await _verdict(check, context, seconds)
    exchanges = context.exchanges
    # In bounded time, whatever state the target is in: one that does not let go, the next check will show.
    with suppress(TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            await context.close()
    return replace(judged, exchanges=exchanges, seconds=time.monotonic() - started)


def without_old_calls(judged: Outcome) -> Outcome:
    """The same outcome with the calls that somebody may want to see: of a long run there are many."""
    is_right = judged.status in (Status.PASS, Status.NOT_APPLICABLE)
    return replace(judged, exchanges=judged.exchanges[-KEPT_CALLS:]) if is_right else judged


async def _verdict(check: Check, context: Evidence, seconds: float) -> Outcome:
    try:
        async with asyncio.timeout(seconds):
            await check.function(context)
        return outcome(check, Status.PASS)
    except NotApplicable as reason:
        return outcome(check, Status.NOT_APPLICABLE, str(reason))
    except TimeoutError:
        return failure(check, Violation(f"no verdict within {seconds:.0f} s"))
    except Unreachable as reason:
        return failure(check, Violation(str(reason)))
    except Exception as problem:  # noqa: BLE001  # a fault of one check must not end the others
        return of_problem(check, problem)


def outcome(check: Check, status: Status, message: str = "") -> Outcome:
    """An outcome of this check."""
    return Outcome(key=check.key, requirement=requirements()[check.id], status=status, message=message)


def not_reached(check: Check, why: CutShort | None) -> Outcome:
    """The outcome of a check whose run ended before its turn, or while it ran."""
    return outcome(check, Status.NOT_RUN, why.reason if why else "its turn did not come")


def failure(check: Check, violation: Violation) -> Outcome:
    """FAIL for a MUST, WARN for a SHOULD."""
    status = Status.FAIL if requirements()[check.id].is_must else Status.WARN
    failed = outcome(check, status, str(violation))
    return replace(failed, expected=violation.expected, seen=violation.seen)


def of_problem(check: Check, problem: Exception) -> Outcome:
    """A failure for a Violation; anything else is a fault of the kit, which never blames the target."""
    if isinstance(problem, Violation):
        return failure(check, problem)
    return outcome(check, Status.ERROR, f"{type(problem).__name__}: {problem}")


def disturbed(failed: Outcome) -> Outcome:
    """A failure for which somebody else may be the reason: no verdict, but all the evidence."""
    message = f"somebody else used the server when it failed: {failed.message}"
    return replace(failed, status=Status.BLOCKED, message=message, is_disturbed=True)


def seen_in_passing(identifier: str, needs: tuple[str, ...] = ()) -> Check:
    """Stands for what the monitor saw of a requirement, in the traffic of whichever check.

    `needs`: the checks without which it says nothing.
    """

    async def watched(context: Evidence) -> None:
        """Nothing runs: the calls are those of others."""

    return Check(identifier, watched, SEEN, needs)


def without_check(requirement: Requirement) -> Outcome:
    """The outcome of a requirement that nothing of this run looks at."""
    why = OF_BACKENDS if requirement.gate == "backend" else "the kit has no check for it yet"
    reason = requirement.excluded or why
    return Outcome(key=requirement.id, requirement=requirement, status=Status.NOT_RUN, message=reason)


def of_repetitions(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome for all runs of a check: FLAKY unless they agree."""
    worst = next((each for each in outcomes if each.status in BROKEN), outcomes[-1])
    if len({each.status for each in outcomes}) == 1:
        return worst
    passed = sum(each.status is Status.PASS for each in outcomes)
    message = f"{passed} of {len(outcomes)} passed: {worst.message}"
    return replace(worst, status=Status.FLAKY, message=message)


def in_order(outcomes: Iterable[Outcome], due: Iterable[Requirement]) -> tuple[Outcome, ...]:
    """By requirement, of those that are due; those without a check of this run say so."""
    by_id: dict[str, list[Outcome]] = {}
    for each in sorted(outcomes, key=lambda outcome: outcome.key):
        by_id.setdefault(each.requirement.id, []).append(each)
    return tuple(each for one in due for each in by_id.get(one.id, [without_check(one)]))
