from __future__ import annotations

import json
from dataclasses import replace

import pytest

from enginewire.conformance.report import human, results
from enginewire.conformance.report.formats import as_badge, as_html, as_json, as_markdown
from enginewire.conformance.report.standing import lines, short
from enginewire.conformance.requirements.levels import Level, level_of
from enginewire.conformance.requirements.profiles import BARE, OF_BARE, is_of
from enginewire.conformance.requirements.requirement import Requirement, requirements
from enginewire.conformance.running.outcome import NEEDS_LAUNCH, Outcome, Report, Status
from tests.conformance.report.reports import outcome, report


def core_with(*changed: Outcome, gates: tuple[str, ...] = ()) -> Report:
    """All of core passes, and these capabilities; no other one is advertised."""
    names = {each.requirement.id for each in changed}
    held = [
        outcome(Status.PASS if level_of(entry) or entry.gate in gates else Status.NEG_PASS, entry.id)
        for entry in requirements().values()
        if entry.id not in names
    ]
    return report(*held, *changed)


def test_the_level_and_the_capabilities_are_said() -> None:
    run = core_with(gates=("seed", "logprobs"))
    assert lines(run) == ["level: 3 (complete)", "capabilities: seed, logprobs"]
    assert short(run) == "level 3 + seed, logprobs"


def test_what_the_next_level_lacks_is_named_as_long_as_it_is_little() -> None:
    few = core_with(outcome(Status.FAIL, "CAN-01"), outcome(Status.BLOCKED, "HLT-02"))
    assert lines(few) == ["level: 1 (streams)", "level 2 (operable) lacks 2: CAN-01, HLT-02"]
    left_out = [name for name in requirements() if name[:3] in ("CAN", "DRN")]
    musts = [requirements()[name] for name in left_out if requirements()[name].is_must]
    drains = sum(entry.id.startswith("DRN") and level_of(entry) == Level.OPERABLE for entry in musts)
    many = core_with(*(outcome(Status.NOT_RUN, name) for name in left_out))
    assert lines(many)[1].startswith("level 2 (operable) asks for what did not run, ")
    assert lines(many)[1].endswith(f", Drain {drains}")


def test_what_could_not_be_judged_is_said() -> None:
    absent = outcome(Status.NOT_APPLICABLE, "INF-08", "max_num_seqs is absent")
    run = core_with(outcome(Status.NOT_RUN, "DRN-01", NEEDS_LAUNCH), absent)
    assert lines(run) == [
        "level: 3 (complete), except what needs --launch, 1: DRN-01",
        "not judged at this server: INF-08 (max_num_seqs is absent)",
    ]
    assert short(run) == "level 3 except launch"


def test_a_server_without_a_level_is_told_what_the_first_one_lacks() -> None:
    run = core_with(outcome(Status.FAIL, "STR-01"))
    assert lines(run) == ["level: none yet", "level 1 (streams) lacks 1: STR-01"]
    assert short(run) == ""


def test_a_run_of_a_few_checks_says_nothing() -> None:
    left_out = [outcome(Status.NOT_RUN, name) for name in requirements() if name != "STR-01"]
    assert lines(report(outcome(Status.PASS, "STR-01"), *left_out)) == []


@pytest.mark.parametrize("render", [human.render, as_markdown.render, as_html.render])
def test_reports_for_people_have_these_lines(render: object) -> None:
    text = render(core_with(gates=("seed",)))  # type: ignore[operator]  # a renderer
    assert "level: 3 (complete)" in text
    assert "capabilities: seed" in text


def test_a_badge_has_the_level_and_what_failed() -> None:
    assert json.loads(as_badge.render(core_with(gates=("seed",))))["message"] == "level 3 + seed"
    failing = json.loads(as_badge.render(core_with(outcome(Status.FAIL, "VER-01"))))
    assert (failing["message"], failing["color"]) == ("level 2, 1 failed", "red")
    every = tuple({entry.gate for entry in requirements().values()})
    assert json.loads(as_badge.render(core_with(gates=every)))["message"].endswith(" capabilities")


def test_programs_get_the_standing_as_an_object() -> None:
    document = json.loads(as_json.render(core_with(outcome(Status.FAIL, "VER-01", "boom"), gates=("seed",))))
    assert document["standing"] == {
        "level": 2,
        "name": "operable",
        "profile": "",
        "not_judged": [],
        "missing": [{"id": "VER-01", "why": "does not hold", "reason": "boom"}],
        "capabilities": ["seed"],
    }
    assert {each["id"]: each["of_level"] for each in document["outcomes"]}["LOG-01"] == 0


def bare_with(*changed: Outcome, gates: tuple[str, ...] = ()) -> Report:
    """What a bare engine keeps passes, with these capabilities; the rest of the contract did not run."""
    names = {each.requirement.id for each in changed}
    others = [
        outcome(_status_for_bare(entry, gates), entry.id)
        for entry in requirements().values()
        if entry.id not in names
    ]
    return replace(report(*others, *changed), profile=BARE)


def _status_for_bare(entry: Requirement, gates: tuple[str, ...]) -> Status:
    if not is_of(entry, BARE):
        return Status.NOT_RUN
    return Status.PASS if entry.id in OF_BARE or entry.gate in gates else Status.NOT_APPLICABLE


def test_a_bare_engine_has_its_profile_in_place_of_a_level() -> None:
    run = bare_with(gates=("seed", "logprobs"))
    assert lines(run) == ["profile: bare", "capabilities: seed, logprobs"]
    assert json.loads(as_badge.render(run))["message"] == "bare + seed, logprobs"
    standing = json.loads(as_json.render(run))["standing"]
    assert (standing["profile"], standing["level"], standing["missing"]) == ("bare", 0, [])
    assert (
        results.table({"raw": json.loads(as_json.render(run))}).splitlines()[2].startswith("| raw | bare |")
    )


def test_what_a_bare_engine_lacks_is_named() -> None:
    run = bare_with(outcome(Status.FAIL, "STP-02"), outcome(Status.NOT_APPLICABLE, "SAM-07", "no logprobs"))
    assert lines(run) == [
        "profile: bare, which lacks 1: STP-02",
        "not judged at this server: SAM-07 (no logprobs)",
    ]
    assert json.loads(as_badge.render(run))["message"] == "1 failed"
