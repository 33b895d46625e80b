from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running import verdict
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.running.registry import Check
from enginewire.conformance.session.session import Unreachable
from enginewire.conformance.wire.violation import NotApplicable, Violation


async def nothing(ctx: object) -> None:
    """A check that is never called here."""


SIDES = [Check("STR-01", nothing, "a"), Check("CLI-01", nothing, "a")]
A_SHOULD = Check("STR-12", nothing)


def test_what_is_asked_of_backends_is_not_called_unchecked() -> None:
    said = {each: verdict.without_check(requirements()[each]).message for each in ("CLI-01", "RTG-01")}
    assert set(said.values()) == {"enginewire-conformance client judges backends"}


class Context:
    """What a check gets."""

    exchanges = ()
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


async def judged(check: Check, ending: Callable[[], Awaitable[object]], seconds: float = 5) -> Outcome:
    async def function(ctx: object) -> None:
        await ending()

    context = Context()
    outcome = await verdict.judged(replace(check, function=function), context, seconds)
    assert context.is_closed
    return outcome


def raises(what: Exception | None) -> Callable[[], Awaitable[None]]:
    async def ending() -> None:
        if what:
            raise what

    return ending


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("check", SIDES, ids=["server", "backend"])
@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        (None, Status.PASS, ""),
        (Violation("no"), Status.FAIL, "no"),
        (NotApplicable("nothing to see"), Status.NOT_APPLICABLE, "nothing to see"),
        (Unreachable("gone"), Status.FAIL, "gone"),
        (KeyError("oops"), Status.ERROR, "KeyError: 'oops'"),
    ],
)
async def test_what_a_check_raises_is_its_outcome(
    check: Check, what: Exception | None, status: Status, message: str
) -> None:
    seen = await judged(check, raises(what))
    assert (seen.key, seen.requirement.id, seen.status, seen.message) == (
        f"{check.id}/a",
        check.id,
        status,
        message,
    )


async def test_a_violation_brings_its_evidence_and_of_a_should_it_is_a_warning() -> None:
    seen = await judged(A_SHOULD, raises(Violation("no", expected=1, seen=2)))
    assert (seen.status, seen.expected, seen.seen) == (Status.WARN, "1", "2")


async def test_a_check_without_an_end_fails() -> None:
    seen = await judged(SIDES[0], hangs, 0)
    assert (seen.status, seen.message) == (Status.FAIL, "no verdict within 0 s")


async def test_whoever_cancels_the_run_gets_no_outcome() -> None:
    running = asyncio.ensure_future(judged(SIDES[0], hangs))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_repetitions_that_agree_are_one_outcome() -> None:
    assert verdict.of_repetitions([passed(), passed()]).status is Status.PASS


def test_repetitions_that_differ_are_flaky_and_say_how_often_it_went_well() -> None:
    failed = replace(passed(), status=Status.FAIL, message="no", seen="2")
    seen = verdict.of_repetitions([passed(), failed, passed()])
    assert (seen.status, seen.message, seen.seen) == (Status.FLAKY, "2 of 3 passed: no", "2")


def test_a_requirement_without_a_check_says_why() -> None:
    excluded = next(each for each in requirements().values() if each.excluded)
    assert verdict.without_check(excluded).message == excluded.excluded
    assert "no check" in verdict.without_check(replace(excluded, excluded="")).message


def passed() -> Outcome:
    return verdict.outcome(SIDES[0], Status.PASS)
