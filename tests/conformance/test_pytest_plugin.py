from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.long import long

LAUNCH = f"{sys.executable} -m enginewire.conformance.mutants one_too_many unix:{{socket}}"

ALONE = "--companies 0"
"""What passes is not judged again, which has tests of its own."""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of its own, as somebody else's project would run it, without our own plugins."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--pyargs",
        "enginewire.conformance",
        "-p",
        "enginewire.conformance.pytest_plugin",
    ]
    alone = ["-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *alone], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_each_requirement_is_a_test_with_a_stable_name(tmp_path: Path) -> None:
    known = tmp_path / "known.yaml"
    known.write_text('- {"id": "LIM-02", "reason": "never"}\n')
    done = run_pytest(
        tmp_path,
        *(
            "--engine-launch",
            LAUNCH,
            "--engine-options",
            f"--baseline {known} {ALONE}",
            "-k",
            "LIM-01 or LIM-02 or LIM-03",
        ),
        *("--junitxml", "junit.xml", "-rs"),
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "contract: A choice MUST NOT have more than `max_tokens` output tokens." in done.stdout
    assert "the baseline says that this fails (never), and it passes" in done.stdout
    assert "BLOCKED: LIM-01 has to hold first" in done.stdout
    cases = ET.parse(tmp_path / "junit.xml").findall(".//testcase")
    assert [(case.attrib["classname"], case.attrib["name"]) for case in cases] == [
        ("conformance.core", f"LIM-0{number}") for number in (1, 2, 3)
    ]


def test_a_known_failure_is_an_expected_failure(tmp_path: Path) -> None:
    known = tmp_path / "known.yaml"
    known.write_text('- {"id": "LIM-01", "reason": "off by one"}\n')
    options = f"--baseline {known} --html report.html {ALONE}"
    done = run_pytest(
        tmp_path, "--engine-launch", LAUNCH, "--engine-options", options, "-k", "LIM-01 or LIM-02"
    )
    assert done.returncode == pytest.ExitCode.OK
    assert re.search("1 passed.* 1 xfailed", done.stdout)
    assert "LIM-01" in (tmp_path / "report.html").read_text()


@long
def test_a_should_that_does_not_hold_is_a_warning(tmp_path: Path) -> None:
    launch = LAUNCH.replace("one_too_many", "headers_late")
    done = run_pytest(tmp_path, "--engine-launch", launch, "--engine-options", ALONE, "-k", "STR-12")
    assert done.returncode == pytest.ExitCode.OK
    assert "ConformanceWarning: STR-12: " in done.stdout


def test_a_target_that_cannot_be_reached_is_no_failure_of_its_tests(tmp_path: Path) -> None:
    options = ("--engine-target", "unix:/nowhere.sock", "--engine-options", "--time-scale 0.05")
    done = run_pytest(tmp_path, *options, "-k", "LIM-01")
    assert (done.returncode, "nothing listens" in done.stdout) == (3, True)


def test_without_a_target_the_plugin_collects_nothing(tmp_path: Path) -> None:
    assert run_pytest(tmp_path).returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_loading_the_plugin_loads_no_grpc() -> None:
    code = "import sys, enginewire.conformance.pytest_plugin; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_several_workers_are_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--engine-target", "unix:/nowhere.sock", "-p", "xdist", "-n", "2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "use -n 0" in done.stderr
