"""Packets get lost without a word, in networks of our own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import private_network
from tests.chaos.rehearsal import __main__ as rehearsal
from tests.long import long


@long
def test_an_engine_behind_a_silent_cable_is_left_and_used_again() -> None:
    argv = [sys.executable, "-m", "tests.chaos.rehearsal", "--only", "silent"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    *rows, last = map(json.loads, done.stdout.splitlines())
    # It says so where nobody may have a network of their own.
    if "skipped" not in last:
        assert last == {"faults": 1, "wrong": 0}
        assert rows[0]["migrated"]


def test_where_there_is_no_private_network_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rehearsal"])
    monkeypatch.setattr(private_network, "PRIVATE", "echo may not >&2; exit 1")
    assert rehearsal.main() == 0
    assert json.loads(capsys.readouterr().out)["skipped"].endswith("may not")
