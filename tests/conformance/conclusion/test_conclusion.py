from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from enginewire.conformance.__main__ import main
from enginewire.conformance.conclusion.conclusion import FORMATS
from enginewire.conformance.report.formats.as_json import SCHEMA
from enginewire.conformance.running.outcome import ExitCode

LAUNCH = ["--launch", f"{sys.executable} -m enginewire.conformance.mutants one_too_many unix:{{socket}}"]
RUN = ["--run", "LIM-0[12]"]


def test_one_run_writes_all_reports_and_they_say_what_the_exit_code_says(tmp_path: Path) -> None:
    files = {name: tmp_path / "new" / name for name in FORMATS}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    known = tmp_path / "known.yaml"
    assert main([*LAUNCH, *RUN, *options]) == ExitCode.VIOLATION
    assert json.loads(files["json"].read_text())["exit_code"] == ExitCode.VIOLATION
    assert all("LIM-01" in files[name].read_text() for name in FORMATS if name != "badge")
    assert (
        main([*LAUNCH, *RUN, *options, "--baseline", str(known), "--update-baseline"]) == ExitCode.CONFORMANT
    )
    assert json.loads(files["json"].read_text())["counts"]["XFAIL"] == 2
    assert main([*LAUNCH, *RUN, "--baseline", str(known)]) == ExitCode.CONFORMANT
    entries = [json.loads(line.removeprefix("- ")) for line in known.read_text().splitlines()]
    assert [entry["id"] for entry in entries] == ["LIM-01", "LIM-01/seen"]


def test_a_report_on_the_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LAUNCH, *RUN, "--json", "-"]) == ExitCode.VIOLATION
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == SCHEMA
    assert "FAIL LIM-01" in err


def test_a_target_that_cannot_be_reached_is_reported_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of the last run must not stay and look like one of this run."""
    path = tmp_path / "report.json"
    path.write_text("old")
    arguments = ["--target", "unix:/nowhere.sock", "--time-scale", "0.05", "--json", str(path)]
    assert main(arguments) == ExitCode.UNREACHABLE
    assert json.loads(path.read_text())["verdict"] == "UNREACHABLE"
    assert "nothing listens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (["--json", "-", "--tap", "-"], "only one report"),
        (["--update-baseline"], "needs --baseline"),
        (["--baseline", "nowhere.yaml"], "nowhere.yaml"),
        (["--revision", "99"], "knows revisions up to"),
        (["--time-scale", "0"], "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(
    arguments: list[str], mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--target", "unix:/nowhere.sock", *arguments])
    assert stopped.value.code == ExitCode.USAGE
    assert mistake in capsys.readouterr().err
