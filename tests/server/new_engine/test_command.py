"""`enginewire new-engine` writes an engine that the kit passes, and harms nothing that is there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.long import long
from tests.repository import ROOT

FILES = {"README.md", "conftest.py", "my_model.py", "pyproject.toml"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m ...` in a folder, as somebody does who has Enginewire and none of our plugins."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def new_engine(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "enginewire", "new-engine", *arguments)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new engine."""
    folder = tmp_path_factory.mktemp("projects")
    done = new_engine(folder, "my-model")
    assert (done.returncode, done.stderr) == (0, "")
    assert {Path(line).name for line in done.stdout.split("\n\n")[0].splitlines()} == FILES
    return folder / "my-model"


def test_it_writes_what_it_says_and_nothing_else(project: Path) -> None:
    assert {path.name for path in project.iterdir()} == FILES
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] == "my-model"
    assert "enginewire engine --engine my_model:MyModelEngine\n" in (project / "README.md").read_text()
    assert "$" not in "".join(path.read_text() for path in project.iterdir())


@long
def test_its_own_test_has_the_kit_judge_the_engine(project: Path) -> None:
    # `make conformance` has all of the kit judge it.
    few = "--level 1 --cases 4 --companies 0"
    plugin = ("-p", "enginewire.conformance.pytest_plugin", "-p", "no:cacheprovider")
    done = run(project, "pytest", *plugin, "--engine-options", few, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    num_passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert num_passed > 50
    assert {path.name for path in project.iterdir()} == FILES


def test_its_own_test_fails_when_the_engine_does(project: Path) -> None:
    engine = project / "my_model.py"
    text = engine.read_text()
    engine.write_text(text.replace("yield answer.token(token_id)", "yield answer.token(token_id + 1000)"))
    try:
        plugin = ("-p", "enginewire.conformance.pytest_plugin", "-p", "no:cacheprovider")
        done = run(project, "pytest", *plugin, "-k", "STR-01", "-q")
    finally:
        engine.write_text(text)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "STR-01" in done.stdout


def test_what_it_writes_is_in_shape(project: Path) -> None:
    for command in (("check", "--select", "E,F,I,UP,B,D1"), ("format", "--check")):
        done = run(project, "ruff", *command, "--no-cache", "--line-length", "110", ".")
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("there", ["folder", "file"])
def test_what_is_there_is_not_touched(tmp_path: Path, there: str) -> None:
    path = tmp_path / "mine"
    path.mkdir() if there == "folder" else path.write_text("mine")
    done = new_engine(tmp_path, "mine")
    assert done.returncode == 2
    assert done.stderr == "enginewire new-engine: mine: exists already; nothing was written\n"
    assert path.is_file() or list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../mine", "allowed are small letters, digits, and - or _"),
        ("Mine", "allowed are small letters, digits, and - or _"),
        ("日本", "allowed are small letters, digits, and - or _"),
        ("class", "class is a word of Python's or pytest's own"),
        ("conftest", "conftest is a word of Python's or pytest's own"),
        ("asyncio", "a Python module asyncio is installed already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    done = new_engine(tmp_path, name)
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_other_languages_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = new_engine(tmp_path, "mine", "--language", "go")
    assert (done.returncode, "choose from 'python'" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_the_text_of_the_files_is_in_the_distribution() -> None:
    from enginewire.server.new_engine.command import TEMPLATES

    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert any(TEMPLATES.is_relative_to(ROOT / package) for package in wheel["packages"])
    assert len(list(TEMPLATES.glob("*.in"))) == len(FILES)
