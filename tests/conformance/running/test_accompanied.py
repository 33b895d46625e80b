from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from enginewire import v1 as pb
from enginewire.conformance.checks import all_checks
from enginewire.conformance.proof.second_order.draw import named
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.running.accompanied import is_comparable
from enginewire.conformance.running.outcome import Report, Status
from enginewire.conformance.running.registry import Check
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.company import FULL, MEMBERS, MULTIPLEXED, PROBE, UNREAD
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect
from tests.conformance.judging import judged, made_up
from tests.long import long

OFTEN = RunOptions(companies=8)
KEY = "STR-06/in-company"


class OneTooMany(Reference):
    """Wrong where a minimum of tokens meets log-probabilities, and nowhere else."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output, request = super().advance(choice), choice.job.request
        asked = request.output_options.HasField("logprobs") and request.stop_conditions.HasField("min_tokens")
        output.first_output_position += asked
        return output


class OneOfASession(Reference):
    """Takes a hint for an order: a request of a session ends the one before it."""

    def admit(self, job: Job) -> None:
        session = job.request.agent_context.session_id
        for other in [*self.live.values()] if session else []:
            if other.request.agent_context.session_id == session:
                self.abort(other)
        super().admit(job)


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


async def test_hints_for_others_that_an_engine_acts_on_are_found() -> None:
    async def two(ctx: Context) -> None:
        first, _ = await asyncio.gather(*(ctx.generate(ctx.request(max_tokens=8)) for _ in range(2)))
        expect(len(first.tokens) == 8, "it was cut")

    report = await judged(OneOfASession, one(two), options=OFTEN)
    [found] = [outcome for outcome in report.outcomes if outcome.status is Status.FAIL]
    assert (found.key, f"beside {UNREAD} (seed" in found.message) == (KEY, True)


async def test_nothing_is_told_of_a_server_that_is_right() -> None:
    report = await judged(Reference, one(), options=OFTEN)
    assert [outcome.key for outcome in report.outcomes if outcome.key.startswith("STR-06")] == ["STR-06"]
    assert "8 times in company" in report.bounds


@pytest.mark.parametrize(
    "wrong_times", [[2], [2, 3, 4]], ids=["once", "without company as well, for a while"]
)
async def test_a_failure_that_is_not_of_the_company_says_nothing(wrong_times: Collection[int]) -> None:
    asked = 0

    async def fails(ctx: Context) -> None:
        nonlocal asked
        asked += 1
        if asked in wrong_times:
            raise Violation("now and then")

    assert failures(await judged(Reference, one(fails), options=OFTEN)) == []
    assert asked > 9


async def test_what_never_passes_again_is_broken_for_good() -> None:
    asked = 0

    async def fails(ctx: Context) -> None:
        nonlocal asked
        asked += 1
        expect(asked == 1, "one block is lost")

    report = await judged(Reference, one(fails), options=OFTEN)
    [found] = [each for each in report.outcomes if each.status is Status.FAIL]
    assert (found.key, "without from then on" in found.message) == (KEY, True)


async def test_what_is_not_asked_for_is_not_judged_again() -> None:
    asked = 0

    async def counts(ctx: Context) -> None:
        nonlocal asked
        asked += 1

    await judged(Reference, one(counts, in_company=False), options=OFTEN)
    await judged(Reference, one(counts), options=RunOptions(companies=0))
    assert asked == 2


def test_what_is_costly_is_judged_again_only_where_it_says_so() -> None:
    costly = {check.key for check in all_checks() if check.is_costly and is_comparable(check)}
    assert costly == {"SAM-07/settings", "SAM-11", "SAM-12", "SAM-15", "SAM-16"}


@long
async def test_a_filter_that_is_ignored_beside_a_minimum_is_found() -> None:
    mutant = named()["min_p_ignored@with_minimum"].mutant()
    checks = [check for check in all_checks() if check.key == "SAM-12"]
    assert failures(await judged(mutant.server, checks, options=OFTEN)) == ["SAM-12/in-company"]


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
        assert sorted(met) == sorted(MEMBERS)


class OneMoreOverAStream(Reference):
    """Wrong for what a multiplexed stream carries."""

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        submit.generate.request.stop_conditions.max_tokens += 1
        return super().submitted(submit, call)


class OneMoreInAFullEngine(Reference):
    """Wrong for a request that finds no free slot."""

    def enqueue(self, job: Job) -> None:
        running = sum(len(other.open_choices) for other in self.running)
        job.request.stop_conditions.max_tokens += running >= self.settings.max_num_seqs
        super().enqueue(job)


class OneMoreInProbes(Reference):
    """Wrong for a request that asks whether the engine generates."""

    def room(self, choice: Choice) -> int:
        return super().room(choice) + choice.job.request.is_probe


async def brings_two_tokens(ctx: Context) -> None:
    stream = await ctx.generate(ctx.request(max_tokens=2))
    expect(len(stream.tokens) == 2, "another length")


@pytest.mark.parametrize(
    ("server", "member"),
    [(OneMoreOverAStream, MULTIPLEXED), (OneMoreInAFullEngine, FULL), (OneMoreInProbes, PROBE)],
)
async def test_a_rule_that_breaks_on_another_way_or_among_others_is_found(
    server: type[Reference], member: str
) -> None:
    found: list[str] = []
    # A busy machine may be late with the request, and the engine is not full any more.
    for _ in range(5):
        report = await judged(server, one(brings_two_tokens), Selection(skip=["*/seen"]), options=OFTEN)
        found = [outcome.message for outcome in report.outcomes if outcome.key == KEY]
        if found:
            break
    [message] = found
    assert message.startswith("another length, beside ")
    assert message.endswith(f"{member} (seed 240)")


class KeepsTheOldestRevision(Reference):
    """What one client said holds for all."""

    oldest = pb.CONTRACT_REVISION

    def check_revision(self, revision: int) -> None:
        if revision > self.oldest:
            raise Refusal(pb.ERROR_REASON_REVISION_MISMATCH, "client_revision", field="client_revision")
        self.oldest = min(self.oldest, revision or self.oldest)


async def test_clients_of_several_revisions_take_turns() -> None:
    report = await judged(KeepsTheOldestRevision, one(brings_two_tokens), options=OFTEN)
    assert KEY in failures(report)
