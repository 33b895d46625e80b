from __future__ import annotations

from dataclasses import asdict

import yaml

from enginewire.conformance.checks import all_checks
from enginewire.conformance.mutants import mutants
from enginewire.conformance.proof.requirements_writer import COMMAND, text
from enginewire.conformance.requirements.requirement import FILE, parse, requirements
from enginewire.conformance.running.monitor.watch import watched_ids


def test_the_file_is_current() -> None:
    assert FILE.read_text() == text(), f"run {COMMAND}"


def test_the_file_is_the_same_read_as_yaml() -> None:
    as_yaml = {entry["id"]: entry for entry in yaml.safe_load(FILE.read_text())}
    as_json = {
        name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(entry).items()
            if value
        }
        for name, entry in requirements().items()
    }
    assert as_yaml == as_json


def test_a_line_survives_being_parsed() -> None:
    for line in FILE.read_text().splitlines()[1:]:
        assert parse(line).line() == line


def test_every_check_and_mutant_names_a_requirement() -> None:
    assert {check.id for check in all_checks()} <= set(requirements())
    seen = {f"{identifier}/seen" for identifier in watched_ids()}
    keys = {check.key for check in all_checks()} | seen
    assert {key for mutant in mutants() for key in mutant.kills} <= keys
    assert {key for mutant in mutants() for key in mutant.also} <= seen


def test_every_check_is_killed_by_a_mutant() -> None:
    killed = {key for mutant in mutants() for key in mutant.kills}
    # The negative checks are one function over a table.
    alive = {check.key for check in all_checks() if not check.unless} - killed
    assert alive == set()


def test_nobody_needs_a_check_that_runs_later() -> None:
    checks = {check.key: check for check in all_checks()}
    # Those that run alone in the same phase are put in order.
    late = [
        (check.key, need)
        for check in checks.values()
        for need in check.needs
        if (checks[need].phase, checks[need].alone) > (check.phase, check.alone)
    ]
    assert late == []


def test_what_came_with_a_later_revision_is_not_demanded_of_earlier_ones() -> None:
    by_revision = {requirement.id[:3] for requirement in requirements().values() if requirement.since > 1}
    assert by_revision == {"EVT", "RTG"}


def test_needs_are_free_of_circles() -> None:
    needs = {check.key: set(check.needs) for check in all_checks()}
    while free := [key for key, wanted in needs.items() if not wanted & needs.keys()]:
        for key in free:
            del needs[key]
    assert needs == {}


def test_every_requirement_has_a_check_or_a_reason_to_have_none() -> None:
    without = [name for name, entry in requirements().items() if not entry.checks and not entry.excluded]
    assert without == []


def test_a_requirement_with_a_check_is_not_excluded() -> None:
    assert [name for name, entry in requirements().items() if entry.checks and entry.excluded] == []
