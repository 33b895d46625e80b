"""The GitHub Action, as far as it runs without GitHub: its own script against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.repository import ROOT

ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "conformance" / "action.yml").read_text())


def step(name: str) -> dict[str, object]:
    return next(step for step in ACTION["runs"]["steps"] if step.get("name") == name)


def judge(tmp_path: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    kit = tmp_path / "conformance-kit" / "bin"
    kit.mkdir(parents=True)
    (kit / "enginewire-conformance").symlink_to(Path(sys.executable).parent / "enginewire-conformance")
    environment = os.environ | {
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "REPORTS": str(tmp_path / "report"),
        **{name: inputs.get(name, "") for name in ("TARGET", "LAUNCH", "OPTIONS")},
    }
    script = str(step("Judge the server")["run"])
    # As GitHub starts it.
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_it_writes_every_report_and_passes_on_the_verdict(tmp_path: Path) -> None:
    broken = f"{sys.executable} -m enginewire.conformance.mutants one_too_many unix:{{socket}}"
    judged = judge(tmp_path, LAUNCH=broken, OPTIONS="--run 'LIM-0[12]' --strict")
    assert judged.returncode == 1, judged.stderr
    assert "LIM-01" in (tmp_path / "summary.md").read_text()
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "index.html",
        "junit.xml",
        "conformance.json",
        "badge.json",
    }


def test_without_a_server_it_says_what_is_needed(tmp_path: Path) -> None:
    judged = judge(tmp_path)
    assert judged.returncode == 2
    assert "--target, --launch" in judged.stderr


def test_every_input_is_used_and_none_is_pasted_into_a_script() -> None:
    text = yaml.safe_dump(ACTION["runs"])
    assert all(f"inputs.{name}" in text for name in ACTION["inputs"])
    # What a caller gives reaches a shell by the environment only.
    assert all("${{" not in str(step.get("run", "")) for step in ACTION["runs"]["steps"])
