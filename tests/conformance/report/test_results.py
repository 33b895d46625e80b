from __future__ import annotations

import json

import pytest

from enginewire.conformance.report.formats import as_json
from enginewire.conformance.report.results import table
from enginewire.conformance.running.outcome import Status
from tests.conformance.report.reports import outcome, report


def test_every_report_is_a_row_and_failures_are_counted() -> None:
    failing = json.loads(as_json.render(report(outcome(Status.FAIL), outcome(Status.PASS, "STR-02"))))
    fine = json.loads(as_json.render(report(outcome(Status.PASS), outcome(Status.NEG_PASS, "STR-02"))))
    rows = table({"a | b": failing, "fine": fine}).splitlines()[2:]
    cells = [[cell.strip() for cell in row.replace("\\|", "/").strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["a / b", "fine"]
    assert [row[3:6] for row in cells] == [["1", "0", "1"], ["1", "1", "0"]]
    assert [row[1] for row in cells] == ["0", "3"]


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(ValueError, match="other is not a report"):
        table({"other": {"schema": "junit"}})
