from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginewire.conformance.__main__ import main
from enginewire.conformance.conclusion import changes
from enginewire.conformance.report.formats import as_json
from enginewire.conformance.running.outcome import ExitCode, Status
from tests.conformance.report.reports import outcome, report


def earlier(tmp_path: Path, *outcomes: tuple[Status, str]) -> changes.Earlier:
    path = tmp_path / "earlier.json"
    path.write_text(as_json.render(report(*(outcome(status, key) for status, key in outcomes))))
    return changes.read(path)


def test_what_got_worse_comes_first_and_what_stayed_is_left_out(tmp_path: Path) -> None:
    before = earlier(
        tmp_path,
        (Status.FAIL, "STR-01"),
        (Status.PASS, "STR-02"),
        (Status.PASS, "STR-03"),
        (Status.PASS, "USE-01"),
    )
    now = report(
        outcome(Status.PASS, "STR-01"),
        outcome(Status.FAIL, "STR-02"),
        outcome(Status.PASS, "STR-03"),
        outcome(Status.WARN, "LIM-01"),
    )
    assert changes.render(before, now).splitlines()[1:] == [
        "  STR-02: PASS -> FAIL",
        "  LIM-01: not there -> WARN",
        "  STR-01: FAIL -> PASS",
        "  USE-01: PASS -> not there",
    ]


def test_nothing_new_is_said_too(tmp_path: Path) -> None:
    before = earlier(tmp_path, (Status.FAIL, "STR-01"))
    assert changes.render(before, report(outcome(Status.FAIL))).endswith("nothing has changed")


@pytest.mark.parametrize("text", ["[]", "no json", json.dumps({"schema": "enginewire-conformance/1"})])
def test_a_file_that_is_no_report_is_refused_before_anything_runs(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["--target", "unix:/nowhere.sock", "--changed-since", str(path)])
    assert stopped.value.code == ExitCode.USAGE
    assert str(path) in capsys.readouterr().err
