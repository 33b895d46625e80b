from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginewire.conformance.conclusion import baseline
from enginewire.conformance.conclusion.baseline import Entry
from enginewire.conformance.running.outcome import ExitCode, Report, Status
from tests.conformance.judging import statuses
from tests.conformance.report.reports import outcome, report


def failing(message: str = "two terminals") -> Report:
    return report(outcome(Status.PASS), outcome(Status.FAIL, "STR-02", message))


def test_a_known_failure_is_expected_and_says_why() -> None:
    run = baseline.applied([Entry("STR-02", "see the roadmap", "#12", "terminal")], failing())
    assert [(o.status, o.known) for o in run.outcomes][1] == (Status.XFAIL, "see the roadmap, #12")
    assert run.exit_code() is ExitCode.CONFORMANT


def test_another_failure_of_a_known_id_is_a_failure() -> None:
    run = baseline.applied([Entry("STR-02", "known", match="no terminal")], failing())
    assert (statuses(run)["STR-02"], run.exit_code()) == (Status.FAIL, ExitCode.VIOLATION)


def test_a_known_failure_that_passes_fails_the_run() -> None:
    run = baseline.applied([Entry("STR-01", "was broken once")], report(outcome(Status.PASS)))
    assert (statuses(run)["STR-01"], run.exit_code()) == (Status.XPASS, ExitCode.VIOLATION)
    assert "remove the entry" in run.outcomes[0].message


@pytest.mark.parametrize("status", [Status.NOT_RUN, Status.BLOCKED, Status.NOT_APPLICABLE])
def test_what_did_not_run_is_not_stale(status: Status) -> None:
    run = baseline.applied(
        [Entry("STR-01", "known")], report(outcome(status), outcome(Status.PASS, "STR-02"))
    )
    assert run.exit_code() is ExitCode.CONFORMANT


def test_an_id_with_several_checks_is_stale_when_none_of_them_fails() -> None:
    keys = ("INF-07", "INF-07/under-load")
    one_fails = report(*map(lambda s, key: outcome(s, "INF-07", key=key), (Status.PASS, Status.FAIL), keys))
    assert set(statuses(baseline.applied([Entry("INF-07", "known")], one_fails)).values()) == {
        Status.PASS,
        Status.XFAIL,
    }
    all_pass = report(*(outcome(Status.PASS, "INF-07", key=key) for key in keys))
    assert Status.XPASS in statuses(baseline.applied([Entry("INF-07", "known")], all_pass)).values()


@pytest.mark.parametrize("status", [Status.FLAKY, Status.ERROR])
def test_what_is_no_steady_failure_of_the_target_is_never_excused(status: Status) -> None:
    run = baseline.applied([Entry("STR-01", "known")], report(outcome(status)))
    assert run.exit_code() in (ExitCode.VIOLATION, ExitCode.KIT_FAULT)


def test_an_update_keeps_the_words_drops_what_is_stale_and_adds_what_is_new() -> None:
    kept, stale, not_run = Entry("STR-02", "why", "#1"), Entry("STR-01", "stale"), Entry("LIM-01", "not run")
    run = report(
        *failing().outcomes, outcome(Status.FAIL, "STR-03", "3 (of 4)"), outcome(Status.NOT_RUN, "LIM-01")
    )
    entries = baseline.updated([kept, stale, not_run], run)
    assert entries == (not_run, kept, Entry("STR-03", "not explained yet", match=r"\d+\ \(of\ \d+\)"))
    assert baseline.applied(entries, run).exit_code() is ExitCode.CONFORMANT


def test_a_file_survives_being_written(tmp_path: Path) -> None:
    entries = (Entry("STR-02", "äh", "#1", "a+"), Entry("INF-07/under-load", "b"))
    path = tmp_path / "known.yaml"
    path.write_text("# ours\n\n" + baseline.text(entries))
    assert baseline.read(path) == entries
    path.write_text(json.dumps([{"id": "STR-02", "reason": "as a list"}], indent=1))
    assert baseline.read(path) == (Entry("STR-02", "as a list"),)


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ('{"id": "STR-02"}', "has id and reason"),
        ('{"id": "STR-02", "reason": ""}', "a reason is needed"),
        ('{"id": "STR-02", "reason": 5}', "every field is a text"),
        ('{"id": "STR-99", "reason": "x"}', "no requirement is called STR-99"),
        ('{"id": "STR-02", "reason": "x", "ticket": "y"}', "has id and reason"),
        ('{"id": "STR-02", "reason": "x", "match": "("}', "no regular expression"),
        ("reason: x", "Expecting value"),
    ],
)
def test_a_file_that_says_nonsense_is_refused(tmp_path: Path, line: str, mistake: str) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(f"- {line}\n")
    with pytest.raises(ValueError, match=mistake):
        baseline.read(path)
