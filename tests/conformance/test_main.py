from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from enginewire.conformance.__main__ import main
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import ExitCode

REFERENCE = f"{shlex.quote(sys.executable)} -m enginewire.conformance.reference"
MUTANT = f"{shlex.quote(sys.executable)} -m enginewire.conformance.mutants one_too_many"


def test_a_launched_server_is_judged_over_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--run", "LIM-0[12],STR-01", "--companies", "0"]
    assert main(["--launch", f"{REFERENCE} unix:{{socket}}", *few]) == ExitCode.CONFORMANT
    assert "conformant as far as it was judged" in capsys.readouterr().out


def test_a_broken_server_is_told_what_it_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{MUTANT} 127.0.0.1:{{port}}"
    assert main(["--launch", command, "--run", "LIM-0[12]"]) == ExitCode.VIOLATION
    shown = capsys.readouterr().out
    assert "FAIL LIM-01" in shown
    assert "A choice MUST NOT have more than `max_tokens` output tokens." in shown
    assert "EngineService.Generate" in shown


def test_a_program_that_ends_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--launch", "false {port}"]) == ExitCode.UNREACHABLE
    assert "the server ended with 1" in capsys.readouterr().err


def test_the_contract_lies_where_the_kit_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--proto-path"]) == ExitCode.CONFORMANT
    assert (Path(capsys.readouterr().out.strip()) / "enginewire" / "v1" / "engine_service.proto").is_file()


def test_a_command_without_an_address_is_a_usage_error() -> None:
    assert main(["--launch", "true"]) == ExitCode.USAGE


@pytest.mark.parametrize("arguments", [[], ["--targt", "x"], ["--target", "x", "--launch", "y {port}"]])
def test_wrong_options_are_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == ExitCode.USAGE


def test_requirements_can_be_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == ExitCode.CONFORMANT
    assert len(capsys.readouterr().out.splitlines()) == len(requirements())
    assert main(["--explain", "lim-04"]) == ExitCode.CONFORMANT
    assert requirements()["LIM-04"].text in capsys.readouterr().out
    assert main(["--explain", "STR-99"]) == ExitCode.USAGE
