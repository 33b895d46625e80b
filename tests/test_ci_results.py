"""What CI runs of the long tests, and its closing line, which adds up what everything prints."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.repository import ROOT

SCRIPT = ROOT / ".ci" / "count_results"

PYTEST = "4660 passed in 332.10s (0:05:32)\n"
KIT = "172 PASS, 92 NEG-PASS, 27 N/A, 36 NOT-RUN in 61.7 s\n"
CHAOS = '{"kills": 5, "streams": 320, "lost": 0, "duplicated": 0, "changed": 0, "rotations": 9}\n'
FUZZ = '{"cases": 20000, "unknown": 0, "internal": 0, "deaths": 0, "leaks": 0}\n'


def counted(printed: str) -> str:
    return subprocess.run(
        [sys.executable, SCRIPT], input=printed, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    ("printed", "closing_line"),
    [
        ("", "0 passed, 0 failed\n"),
        (PYTEST, "4660 passed, 0 failed\n"),
        ("2 failed, 7 passed, 1 error in 3.21s\n", "7 passed, 3 failed\n"),
        ("=== 1 failed in 0.52s ===\n", "0 passed, 1 failed\n"),
        (CHAOS + FUZZ, "7 passed, 0 failed\n"),
        (CHAOS.replace('"lost": 0', '"lost": 2') + FUZZ, "6 passed, 2 failed\n"),
        (PYTEST + KIT + "1 FAIL, 3 PASS, 1 ERROR in 2.0 s\n", "4927 passed, 2 failed\n"),
    ],
)
def test_tests_and_checks_are_counted_together(printed: str, closing_line: str) -> None:
    assert counted(printed) == closing_line


def test_lines_that_repeat_or_detail_a_result_count_nothing() -> None:
    details = "STR  Stream  12 PASS\n== cpp at unix:{socket}: 172 PASS in 45.6 s, exit code 0\n; a 3 PASS\n"
    assert counted(details) == "0 passed, 0 failed\n"


@pytest.mark.parametrize("parts", [1, 3])
def test_each_test_is_in_one_part(parts: int) -> None:
    all_of_them = cast(list[pytest.Item], list(range(10)))
    chosen, left_out = list[pytest.Item](), list[pytest.Item]()
    for place in range(1, parts + 1):
        items = list(all_of_them)
        hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
        config = SimpleNamespace(getoption=lambda _, place=place: f"{place}/{parts}", hook=hook)
        pytest_collection_modifyitems(cast(pytest.Config, config), items)
        chosen += items
    assert sorted(chosen, key=hash) == all_of_them
    assert len(left_out) == len(all_of_them) * (parts - 1)
