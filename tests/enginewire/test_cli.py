from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from enginewire import cli
from enginewire.version import __version__

HEAVY = ("grpc", "google.protobuf", "torch", "tokenizers", "transformers", "numpy")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A program behind the command `engine` that remembers its arguments and answers 7."""
    module = SimpleNamespace(argv=None)

    def main(argv: list[str]) -> int:
        module.argv = argv
        return 7

    module.main = main
    monkeypatch.setitem(sys.modules, "enginewire.server.__main__", module)
    monkeypatch.setattr(cli, "available", lambda: dict(cli.COMMANDS))
    return module


def test_a_command_gets_the_arguments_behind_it_and_its_exit_code_is_returned(
    program: SimpleNamespace,
) -> None:
    assert cli.main(["engine", "--help", "--port", "0", "engine"]) == 7
    assert program.argv == ["--help", "--port", "0", "engine"]


def test_arguments_come_from_the_process_when_none_are_passed(
    program: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["enginewire", "engine", "--x"])
    assert cli.main() == 7
    assert program.argv == ["--x"]


@pytest.mark.parametrize("argv", [[], ["nope"], ["--nope"], ["engin"]])
def test_anything_that_is_no_command_ends_with_2(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_missing_package_is_one_line_with_the_extra_to_install(
    program: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(argv: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    program.main = main
    assert cli.main(["engine"]) == 2
    expected = "enginewire engine needs the Python module torch.nn: pip install 'enginewire[engine]'\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("argv", "extra"),
    [
        (["--engine", "mocker"], "server"),
        (["--port", "0", "--engine=mocker"], "server"),
        (["--engine", "my.module:MyEngine"], "server"),
        (["--engine", "torch", "--port", "0"], "engine"),
        (["./model"], "engine"),
    ],
)
def test_the_extra_is_the_one_that_the_chosen_engine_needs(
    program: SimpleNamespace, capsys: pytest.CaptureFixture[str], argv: list[str], extra: str
) -> None:
    def main(argv: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'google.rpc'", name="google.rpc")

    program.main = main
    assert cli.main(["engine", *argv]) == 2
    expected = f"enginewire engine needs the Python module google.rpc: pip install 'enginewire[{extra}]'\n"
    assert capsys.readouterr().err == expected


def test_a_missing_module_of_ours_is_a_bug_and_not_a_missing_extra(program: SimpleNamespace) -> None:
    def main(argv: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'enginewire.server.nope'", name="enginewire.server.nope")

    program.main = main
    with pytest.raises(ModuleNotFoundError):
        cli.main(["engine"])


def test_only_commands_that_exist_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listing = capsys.readouterr().out.partition("commands:\n")[2]
    listed = [line.split()[0] for line in listing.splitlines() if line.startswith("  ")]
    assert listed == list(cli.available())
    assert {"engine", "conformance"} <= set(listed) <= set(cli.COMMANDS)


def test_a_command_without_its_program_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"gone": cli.Command("enginewire.server.gone", "engine", "nothing")})
    assert cli.available() == {}


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["engine", "--help"], ["engine", "--version"]])
def test_help_and_version_import_nothing_heavy(argv: list[str]) -> None:
    code = f"""
import sys
from enginewire.cli import main
try:
    main({argv!r})
except SystemExit as end:
    assert end.code == 0, end.code
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_python_m_enginewire_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enginewire", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"enginewire {__version__}\n"
