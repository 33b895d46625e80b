"""Fleets of benchmarks/fleet/fleet.py run on the real backend, which loses nothing when engines are lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.repository import ROOT

COMMAND = "--engines 6 --callers 100 --turns 1 --policy ours --share 0.4 --json --fault"


@pytest.mark.parametrize("fault", ["die", "freeze"])
def test_every_answer_is_whole_whatever_a_part_of_the_engines_does(fault: str) -> None:
    argv = [sys.executable, str(ROOT / "benchmarks/fleet/fleet.py"), *COMMAND.split(), fault]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert (seen["completed"], seen["wrong"], seen["failures"]) == (100, 0, {})
    assert seen["retries"] > 0
    assert 0 < seen["prefix_hit_rate"] < 1
