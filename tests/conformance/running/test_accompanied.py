from __future__ import annotations

from collections.abc import Collection

import pytest

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Report, Status
from enginewire.conformance.running.registry import Check, Phase
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.company import JOINS
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect
from tests.conformance.judging import judged, made_up

OFTEN = RunOptions(companies=8)
KEY = "STR-06/in-company"


class OneTooMany(Reference):
    """Wrong where a minimum of tokens meets log-probabilities, and nowhere else."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output, request = super().advance(choice), choice.job.request
        asked = request.output_options.HasField("logprobs") and request.stop_conditions.HasField("min_tokens")
        output.first_output_position += asked
        return output


async def counts_from_0(ctx: Context) -> None:
    stream = await ctx.generate(ctx.request(max_tokens=2))
    expect(stream.outputs[0].first_output_position == 0, "does not count from 0")


def failures(report: Report) -> list[str]:
    return [outcome.key for outcome in report.outcomes if outcome.status in (Status.FAIL, Status.WARN)]


def one(function: object = counts_from_0, **fields: object) -> list[Check]:
    return [made_up("STR-06", function, **fields)]


async def test_a_rule_that_breaks_beside_two_options_is_found_with_both_and_no_third() -> None:
    report = await judged(OneTooMany, one(), options=OFTEN)
    found = {outcome.key: outcome for outcome in report.outcomes if outcome.status is Status.FAIL}
    assert KEY in found
    assert "does not count from 0, beside min_tokens, logprobs (seed 240)" in found[KEY].message
    assert found[KEY].traffic == "STR-06"


async def test_nothing_is_told_of_a_server_that_is_right() -> None:
    report = await judged(Reference, one(), options=OFTEN)
    assert [outcome.key for outcome in report.outcomes if outcome.key.startswith("STR-06")] == ["STR-06"]
    assert "8 times in company" in report.bounds


@pytest.mark.parametrize("wrong_times", [[2], range(2, 100)], ids=["once", "without company as well"])
async def test_a_failure_that_is_not_of_the_company_says_nothing(wrong_times: Collection[int]) -> None:
    asked = 0

    async def fails(ctx: Context) -> None:
        nonlocal asked
        asked += 1
        if asked in wrong_times:
            raise Violation("now and then")

    assert failures(await judged(Reference, one(fails), options=OFTEN)) == []
    assert asked > 9


async def test_what_is_not_asked_for_is_not_judged_again() -> None:
    asked = 0

    async def counts(ctx: Context) -> None:
        nonlocal asked
        asked += 1

    for checks in (one(counts, in_company=False), one(counts, is_costly=True), one(counts, phase=Phase.LOAD)):
        await judged(Reference, checks, options=OFTEN)
    await judged(Reference, one(counts), options=RunOptions(companies=0))
    assert asked == 4


async def test_a_check_that_did_not_pass_is_not_judged_again() -> None:
    asked = 0

    async def never(ctx: Context) -> None:
        nonlocal asked
        asked += 1
        raise NotApplicable("not here") if asked == 1 else Violation("no")

    report = await judged(Reference, one(never), options=OFTEN)
    assert asked == 1
    assert failures(report) == []


async def test_one_can_leave_it_out() -> None:
    report = await judged(OneTooMany, one(), Selection(skip=[KEY, "*/seen"]), options=OFTEN)
    assert failures(report) == []


async def test_what_a_check_looks_at_itself_stays_away_from_it() -> None:
    assert KEY in failures(await judged(OneTooMany, one(), options=OFTEN))
    apart = one(not_beside=("logprobs",))
    assert KEY not in failures(await judged(OneTooMany, apart, options=OFTEN))


async def test_a_fault_of_the_kit_is_told() -> None:
    async def stumbles(ctx: Context) -> None:
        if ctx.company.members:
            raise RuntimeError("it was me")

    report = await judged(Reference, one(stumbles), options=OFTEN)
    [fault] = {each.message for each in report.outcomes if each.status is Status.ERROR}
    assert fault == "RuntimeError: it was me"


async def test_a_check_that_is_judged_twice_meets_everybody() -> None:
    met: list[str] = []

    async def meets(ctx: Context) -> None:
        met.extend(ctx.company.members)

    for key in ("STR-05", "STR-06", "LIM-01"):
        met.clear()
        await judged(Reference, [made_up(key, meets)], options=RunOptions(companies=2))
        assert sorted(met) == sorted(JOINS)
