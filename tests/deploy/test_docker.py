"""The Dockerfiles copy what is there and not ignored, and the health check tells the truth."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

FILES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
CHECK = ROOT / "deploy" / "docker" / "healthcheck.py"
READY = "enginewire.v1.EngineService"


def copied(file: Path) -> list[str]:
    """The sources of COPY that come from the checkout."""
    lines = [line.split()[1:] for line in file.read_text().splitlines() if line.startswith("COPY ")]
    return [source for words in lines if not words[0].startswith("--from") for source in words[:-1]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_image_copies_what_is_there_and_not_ignored(file: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    assert copied(file)
    for source in copied(file):
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in allowed), source


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_image_has_a_version_below_it_and_a_user_with_a_number(file: Path) -> None:
    text = file.read_text()
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]


def test_the_health_check_follows_the_engine(launch) -> None:  # type: ignore[no-untyped-def]
    server = launch("--health-port", "0")
    server.target()
    target = server.wait_for("health at ").removeprefix("health at ")
    assert asked(target, READY) == (0, "")
    assert asked(target) == (0, "")
    server.end()
    assert asked(target, READY) == (1, f"{target}: UNAVAILABLE\n")


def test_the_health_check_tells_an_engine_that_loads_from_one_that_is_ready(launch) -> None:  # type: ignore[no-untyped-def]
    server = launch("--health-port", "0", engine="tests.end_to_end.slow_engine:StartsNever")
    target = server.wait_for("health at ").removeprefix("health at ")
    assert asked(target) == (0, "")
    assert asked(target, READY) == (1, f"{target}: {READY} is NOT_SERVING\n")


def asked(target: str, *service: str) -> tuple[int, str]:
    """The exit code of the check, and what it says."""
    done = subprocess.run(
        [sys.executable, str(CHECK), target, *service],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode, done.stderr
