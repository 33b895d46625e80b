from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from enginewire.conformance.__main__ import main
from enginewire.conformance.running.outcome import ExitCode
from tests.long import long

FEW = ("--cases", "40")
"""Drawn cases: `make conformance` plays more of them."""
OURS = f"{shlex.quote(sys.executable)} -m enginewire.backend serve --target {{target}}"


@long
def test_our_backend_is_conformant(capsys: pytest.CaptureFixture[str]) -> None:
    """In front of an engine that offers GenerateMultiplexed; `make conformance` has one without, too."""
    command = ["client", "--command", f"{OURS} --uds {{socket}}", "--multiplexed"]
    assert main([*command, *FEW, "--strict"]) == ExitCode.CONFORMANT
    shown = capsys.readouterr().out
    assert "FAIL" not in shown
    # It repeats no field as a key of metadata.
    assert [line.split(":")[0] for line in shown.splitlines() if line.startswith("N/A")] == ["N/A CLI-42"]


@long
def test_our_backend_without_replay_is_conformant_but_for_a_should(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = f"{OURS} --host 127.0.0.1 --port {{port}} --no-replay"
    assert main(["client", "--command", command, *FEW, "--run", "CLI-2*"]) == ExitCode.CONFORMANT
    assert "WARN CLI-28" in capsys.readouterr().out


def test_a_program_that_ends_is_not_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["client", "--command", "false {target} {port}", "--json", str(path)]
    assert main(arguments) == ExitCode.UNREACHABLE
    assert "the backend ended with 1" in capsys.readouterr().err
    assert json.loads(path.read_text())["verdict"] == "UNREACHABLE"


@pytest.mark.parametrize("command", ["backend --listen {listen}", "backend --engine {target}"])
def test_a_command_without_both_addresses_is_a_usage_error(command: str) -> None:
    assert main(["client", "--command", command]) == ExitCode.USAGE


def test_a_selection_that_matches_nothing_is_no_success() -> None:
    command = f"{OURS} --uds {{socket}}"
    assert main(["client", "--command", command, "--run", "NOPE-*"]) == ExitCode.NOTHING_RAN


def test_the_list_has_the_requirements_of_backends_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["client", "--list"]) == ExitCode.CONFORMANT
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "CLI-01" in ids
    assert {name[:3] for name in ids} == {"CLI", "EVT", "RTG"}


def test_without_a_command_there_is_nothing_to_judge() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["client"])


def test_a_case_is_played_alone_and_named_in_the_repro(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = '{"tokens": [["a"]], "ends": ["LENGTH"], "messages": [[0, 1]]}'
    path = tmp_path / "report.json"
    arguments = ["client", "--command", "false {target} {port}", "--case", case, "--json", str(path)]
    assert main(arguments) == ExitCode.UNREACHABLE
    with pytest.raises(SystemExit, match="2"):
        main(["client", "--command", "false {target} {port}", "--case", '{"tokens": []}'])
    assert "--case: no case" in capsys.readouterr().err
