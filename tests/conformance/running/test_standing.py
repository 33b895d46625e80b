from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire.conformance.mutants.streams.metadata import BadTraceparentRejected
from enginewire.conformance.requirements.levels import Level, level_of
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import NEEDS_LAUNCH, Outcome, Report, Status
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.standing import Proof, Standing, standing
from tests.conformance.judging import ALONE, judged
from tests.conformance.report.reports import outcome, report
from tests.long import long

OF_SECOND = [entry.id for entry in requirements().values() if level_of(entry) == Level.OPERABLE]


def run_with(*changed: Outcome, default: Status = Status.PASS) -> Report:
    """Everything has one status but these."""
    other = {each.requirement.id for each in changed}
    return report(*(outcome(default, name) for name in requirements() if name not in other), *changed)


def of(run: Report) -> Standing:
    where = standing(run)
    assert where
    return where


def test_a_server_that_passes_everything_is_complete_with_all_its_capabilities() -> None:
    where = of(run_with())
    assert (where.level, where.missing, where.not_judged) == (Level.COMPLETE, (), ())
    assert {"seed", "logprobs", "penalties", "kv_events"} <= set(where.capabilities)
    assert not {"core", "launch", "backend", "keepalive"} & set(where.capabilities)


@pytest.mark.parametrize(
    ("status", "proof"),
    [
        (Status.FAIL, Proof.BROKEN),
        (Status.XFAIL, Proof.BROKEN),
        (Status.FLAKY, Proof.BROKEN),
        (Status.BLOCKED, Proof.BLOCKED),
        (Status.NOT_RUN, Proof.NOT_RUN),
    ],
)
def test_one_must_of_the_second_level_keeps_a_server_on_the_first(status: Status, proof: Proof) -> None:
    where = of(run_with(outcome(status, "CAN-01")))
    assert where.level == Level.STREAMS
    assert [(each.requirement.id, each.proof) for each in where.missing] == [("CAN-01", proof)]


def test_a_should_is_no_part_of_a_level() -> None:
    assert of(run_with(outcome(Status.WARN, "INF-10"))).level == Level.COMPLETE


def test_a_server_without_the_first_level_has_none() -> None:
    where = of(run_with(outcome(Status.FAIL, "STR-01")))
    assert (where.level, where.is_known) == (0, True)


def test_what_says_nothing_about_the_server_is_named_and_is_no_pass() -> None:
    where = of(run_with(outcome(Status.NOT_APPLICABLE, "INF-08", "max_num_seqs is absent")))
    (excused,) = where.not_judged
    assert (where.level, excused.requirement.id, excused.reason) == (
        Level.COMPLETE,
        "INF-08",
        "max_num_seqs is absent",
    )


@pytest.mark.parametrize(
    "of_launch",
    [
        outcome(Status.NOT_RUN, "DRN-01", f"ends the server: {NEEDS_LAUNCH} or --allow-destructive"),
        replace(outcome(Status.NOT_APPLICABLE, "LIF-01", NEEDS_LAUNCH), closed_gate="launch"),
    ],
)
def test_what_needs_launch_is_said_beside_the_level(of_launch: Outcome) -> None:
    where = of(run_with(of_launch))
    assert (where.level, where.needs_launch) == (Level.COMPLETE, where.not_judged)
    assert len(where.needs_launch) == 1


@pytest.mark.parametrize("status", [Status.NEG_PASS, Status.NOT_APPLICABLE, Status.NOT_RUN, Status.BLOCKED])
def test_a_capability_counts_when_everything_it_asks_for_passed(status: Status) -> None:
    assert "logprobs" not in of(run_with(outcome(status, "LOG-02"))).capabilities


def test_a_requirement_is_as_good_as_the_worst_of_its_checks() -> None:
    both = outcome(Status.PASS, "INF-03"), outcome(Status.FAIL, "INF-03", key="INF-03/after-load")
    assert [each.proof for each in of(run_with(*both)).missing] == [Proof.BROKEN]
    quiet = outcome(Status.PASS, "ERR-17"), outcome(Status.NOT_APPLICABLE, "ERR-17", key="ERR-17/lora")
    assert of(run_with(*quiet)).level == Level.COMPLETE


def test_a_run_of_a_few_checks_does_not_know_the_level() -> None:
    assert not of(run_with(outcome(Status.PASS, "STR-01"), default=Status.NOT_RUN)).is_known


def test_a_backend_has_no_level() -> None:
    assert standing(report(outcome(Status.PASS, "CLI-01"))) is None


@long
async def test_a_server_that_breaks_one_must_of_the_second_level_is_on_the_first() -> None:
    left_out = [identifier for identifier in OF_SECOND if not identifier.startswith("MDT")]
    few = replace(ALONE, cases=4)
    run = await judged(BadTraceparentRejected, selection=Selection(level=2, skip=left_out), options=few)
    where = of(run)
    assert where.level == Level.STREAMS, where.missing
    broken = [each.requirement.id for each in where.missing if each.proof is Proof.BROKEN]
    assert broken == ["MDT-01"]
