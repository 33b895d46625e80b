from __future__ import annotations

import json

import pytest

from conformance.__main__ import main
from conformance.mutants import Mutant
from conformance.mutants.limits import MinGtMaxOk, OneTooMany
from conformance.reference.server import Reference
from conformance.self_test import kill


async def test_a_mutant_is_killed_by_its_check_and_no_other() -> None:
    done = await kill(Mutant("one_too_many", ("LIM-01",), OneTooMany), quick=True)
    assert (done.is_exact, done.failed) == (True, ("LIM-01",))


async def test_a_mutant_that_nothing_notices_is_alive() -> None:
    done = await kill(Mutant("not_broken", ("LIM-01",), Reference), quick=True)
    assert (done.is_killed, done.failed) == (False, ())


async def test_a_mutant_killed_by_another_check_is_not_exact() -> None:
    done = await kill(Mutant("min_gt_max_ok", ("LIM-01",), MinGtMaxOk), quick=True)
    assert (done.is_killed, done.is_exact) == (False, False)


def test_the_summary_ends_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["self-test", "--json", "--workers", "1", "--quick", "--run", "total_*"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["mutants"], summary["exact_kills"]) == (1, 1)
    assert summary["kills"] == {"total_wrong": ["USE-03"]}
