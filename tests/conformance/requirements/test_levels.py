from __future__ import annotations

import re
from collections import Counter

import pytest

from enginewire.conformance.report.verdict import AREAS as NAMES
from enginewire.conformance.requirements.levels import AREAS, EXCEPTIONS, Level, level_of
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.verdict import seen_in_passing
from tests.conformance.judging import made_up
from tests.repository import ROOT

ROW = re.compile(r"^\| (?P<level>\d), (?P<name>\w+) \| [^|]+ \| (?P<areas>[^|]*) \| (?P<single>[^|]*) ?\|$")
PAGE = (ROOT / "docs" / "contract.md").read_text()
ROWS = {int(found["level"]): found for line in PAGE.splitlines() if (found := ROW.match(line))}


@pytest.mark.parametrize("level", Level)
def test_the_contract_says_the_same_levels(level: Level) -> None:
    row = ROWS[level]
    assert row["name"] == level.name.lower()
    assert re.findall("[A-Z]{3}-[0-9]{2}", row["single"]) == [
        identifier for identifier, of in EXCEPTIONS.items() if of is level
    ]
    if level is not Level.COMPLETE:
        assert row["areas"].split(", ") == [area for area, of in AREAS.items() if of is level]


def test_every_area_and_exception_exists_and_changes_something() -> None:
    assert AREAS.keys() <= NAMES.keys()
    for identifier, level in EXCEPTIONS.items():
        assert level_of(requirements()[identifier]) == level
        assert AREAS.get(identifier[:3]) is not level


def test_what_belongs_to_a_capability_or_a_backend_has_no_level() -> None:
    without = {entry.gate for entry in requirements().values() if not level_of(entry)}
    assert {"seed", "logprobs", "backend"} <= without
    assert not {"core", "launch"} & without


def test_the_first_level_is_a_small_start() -> None:
    levels = Counter(level_of(entry) for entry in requirements().values() if entry.is_must)
    assert levels[Level.STREAMS] < 70
    assert all(levels[level] for level in Level)


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("STR-01", ""),
        ("ERR-01", ""),
        ("CAN-01", ""),
        ("VER-01", "not of level 2"),
        ("LOG-01", "not of level 2"),
        ("LIF-01", ""),
    ],
)
def test_a_level_selects_core_up_to_it(identifier: str, reason: str) -> None:
    selection = Selection(level=2, phases=frozenset(Phase))
    assert selection.why_not(requirements()[identifier], made_up(identifier, None)) == reason


@pytest.mark.parametrize(
    ("level", "left_out"), [(0, set()), (1, {"HLT-03", "MSG-03", "LOG-03"}), (2, {"MSG-03", "LOG-03"})]
)
def test_what_is_beyond_the_chosen_level_is_not_reported_in_passing(level: int, left_out: set[str]) -> None:
    selection = Selection(level=level)
    ids = ("STR-05", "HLT-03", "MSG-03", "LOG-03")
    assert {name for name in ids if selection.leaves_out(seen_in_passing(name))} == left_out
