from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from enginewire.conformance.conclusion.conclusion import FORMATS
from enginewire.conformance.report import human
from enginewire.conformance.report.formats import as_badge, as_html, as_json, as_junit, as_markdown, as_tap
from enginewire.conformance.report.text import visible
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.outcome import CutShort, ExitCode, Report, Status
from tests.conformance.report.reports import hostile_report, outcome, report

RENDERERS = [*(render for render, _ in FORMATS.values()), human.render]

RUNS = [
    report(
        outcome(Status.PASS), outcome(Status.NEG_PASS, "LOG-01"), outcome(Status.NOT_APPLICABLE, "LOR-01")
    ),
    report(outcome(Status.PASS), outcome(Status.XFAIL, "STR-02", "known")),
    report(outcome(Status.PASS), outcome(Status.WARN, "STR-12")),
    report(outcome(Status.PASS), outcome(Status.WARN, "STR-12"), strict=True),
    *(
        report(outcome(Status.PASS), outcome(status, "STR-02"))
        for status in (Status.FAIL, Status.XPASS, Status.FLAKY)
    ),
    report(outcome(Status.PASS), outcome(Status.ERROR, "STR-02"), outcome(Status.FAIL, "STR-03")),
    Report(target="host:1", invocation="--target host:1", unreachable="nothing listens there"),
    replace(report(outcome(Status.PASS)), cut_short=CutShort("interrupted", ExitCode.INTERRUPTED)),
    report(outcome(Status.NOT_RUN), outcome(Status.NOT_APPLICABLE, "STR-02")),
]


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def verdict_of_junit(text: str) -> bool:
    suite = ET.fromstring(text.encode()).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    for attribute, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    return suite.attrib["failures"] == suite.attrib["errors"] == "0"


def verdict_of_tap(text: str) -> bool:
    failed = [line for line in text.splitlines() if line.startswith("not ok") and "# TODO" not in line]
    return not failed and "Bail out!" not in text


VERDICTS: dict[Callable[[Report], str], Callable[[str], bool]] = {
    as_json.render: lambda text: json.loads(text)["exit_code"] == 0,
    as_junit.render: verdict_of_junit,
    as_tap.render: verdict_of_tap,
    as_markdown.render: lambda text: "✅" in text and "❌" not in text,
    as_badge.render: lambda text: json.loads(text)["color"] in ("brightgreen", "yellow"),
    as_html.render: lambda text: '<header class="verdict pass">' in text,
    human.render: lambda text: text.splitlines()[-1].startswith("conformant"),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("render", VERDICTS)
def test_no_report_disagrees_with_the_exit_code(render: Callable[[Report], str], run: Report) -> None:
    assert VERDICTS[render](render(run)) == (run.exit_code() is ExitCode.CONFORMANT)


def test_every_report_is_compared_with_the_exit_code() -> None:
    assert set(RENDERERS) == set(VERDICTS)


@pytest.mark.parametrize("render", RENDERERS)
def test_no_report_has_a_character_that_a_target_could_do_harm_with(render: Callable[[Report], str]) -> None:
    assert {character for character in render(hostile_report()) if not character.isprintable()} <= {"\n"}


@pytest.mark.parametrize("render", RENDERERS)
def test_no_report_has_metadata(render: Callable[[Report], str]) -> None:
    assert "secret" not in render(hostile_report())


def test_nothing_of_a_target_becomes_a_tag() -> None:
    """The only scripts and styles are the page's own, by their hashes."""
    page = as_html.render(hostile_report())
    harmless = as_html.render(report(*(outcome(o.status, o.key, "text") for o in hostile_report().outcomes)))
    tags, expected = Tags(page).found, Tags(harmless).found
    assert [tag for tag, _ in tags] == [tag for tag, _ in expected]
    assert not [
        name for _, attributes in tags for name in attributes if name.startswith("on") or name == "style"
    ]
    policy = re.findall(r"(?:style|script)-src '(sha256-[^']+)'", page)
    assert len(policy) == 2
    assert "unsafe" not in page.split("<style>")[0]


def test_a_page_loads_nothing() -> None:
    tags = Tags(as_html.render(RUNS[-3])).found
    references = [
        attributes.get(name) for _, attributes in tags for name in ("src", "href") if name in attributes
    ]
    assert all(reference and reference.startswith("#") for reference in references)


def test_a_page_has_every_outcome_in_the_matrix_and_in_the_list() -> None:
    tags = Tags(as_html.render(hostile_report())).found
    cells = [
        attributes["href"] for tag, attributes in tags if attributes.get("class", "").startswith("cell ")
    ]  # type: ignore[union-attr]  # has a class
    rows = [f"#{attributes['id']}" for tag, attributes in tags if tag == "details"]
    assert sorted(cells) == sorted(rows) == sorted(f"#{o.key}" for o in hostile_report().outcomes)


def test_junit_names_cases_by_profile_and_key() -> None:
    run = report(
        outcome(Status.FAIL, "INF-07", "boom", key="INF-07/under-load"), outcome(Status.ERROR, "STR-01")
    )
    cases = ET.fromstring(as_junit.render(run).encode()).findall(".//testcase")
    assert [(case.attrib["classname"], case.attrib["name"]) for case in cases] == [
        ("kv_blocks", "INF-07/under-load"),
        ("core", "STR-01"),
    ]
    assert [case[0].tag for case in cases] == ["failure", "error"]
    assert requirements()["INF-07"].text in (cases[0][0].text or "")


def test_tap_says_skip_and_todo() -> None:
    lines = as_tap.render(
        report(outcome(Status.BLOCKED, "STR-01", "x # y"), outcome(Status.XFAIL, "STR-02", "why"))
    ).splitlines()
    assert lines[:2] == ["TAP version 14", "1..2"]
    assert lines[3].endswith("# SKIP BLOCKED: x \\# y")
    assert lines[4].startswith("not ok 2 - STR-02")
    assert lines[4].endswith("# TODO why")


def test_json_has_the_calls_of_what_failed_only() -> None:
    run = json.loads(as_json.render(report(outcome(Status.PASS), outcome(Status.FAIL, "STR-02", "boom"))))
    passed, failed = run["outcomes"]
    assert (run["schema"], run["counts"]) == ("enginewire-conformance/1", {"PASS": 1, "FAIL": 1})
    assert "calls" not in passed
    (call,) = failed["calls"]
    assert (call["method"], call["status"], call["left_out"]) == (
        "EngineService.Generate",
        "INTERNAL: boom",
        34,
    )
    assert [message["ms"] for message in call["messages"]][:2] == pytest.approx([0.0, 10.0])
    assert failed["repro"] == [
        "enginewire-conformance --target unix:/run/engine.sock --run STR-02 --trace",
        'grpcurl -plaintext -unix -import-path "$(enginewire-conformance --proto-path)"'
        " -proto enginewire/v1/engine_service.proto"
        """ -d '{"request_id": "boom"}' /run/engine.sock enginewire.v1.EngineService/Generate""",
    ]


def test_a_badge_counts() -> None:
    failing = json.loads(as_badge.render(report(outcome(Status.FAIL), outcome(Status.PASS, "STR-02"))))
    assert (failing["schemaVersion"], failing["message"], failing["color"]) == (1, "1 failed", "red")
    known = json.loads(as_badge.render(RUNS[1]))
    assert (known["message"], known["color"]) == ("1 passed, 1 known failures", "yellow")


def test_a_step_summary_keeps_within_what_a_service_takes() -> None:
    many = [outcome(Status.FAIL, identifier) for identifier in requirements()]
    assert len(as_markdown.render(report(*many)).encode()) < 1_000_000


def test_a_terminal_is_told_why_a_check_that_ran_has_no_verdict() -> None:
    ran = replace(outcome(Status.NOT_APPLICABLE, text="it ends too soon"), seconds=0.1)
    run = report(outcome(Status.PASS, "STR-02"), ran, outcome(Status.NOT_APPLICABLE, "LIM-01"))
    lines = human.render(run).splitlines()
    assert [line for line in lines if line.startswith("N/A ")] == ["N/A STR-01: it ends too soon"]


def test_text_that_moves_a_cursor_or_turns_around_is_spelled_out() -> None:
    assert visible("a\x1b[1m\u202eb\n日本") == "a\\x1b[1m\\u202eb\\n日本"


def test_a_terminal_is_not_flooded_with_what_is_blocked() -> None:
    first, *others = requirements()
    blocked = [outcome(Status.BLOCKED, identifier, f"{first} has to hold first") for identifier in others]
    few = [outcome(Status.BLOCKED, identifier, "STR-09 has to hold first") for identifier in others[:2]]
    lines = human.render(report(*blocked, *few)).splitlines()
    assert [line for line in lines if line.startswith("BLOCKED")] == [
        f"BLOCKED {len(others)}: INF-01 has to hold first",
        "BLOCKED 2 (INF-02, INF-03): STR-09 has to hold first",
    ]
