"""The report as Markdown for the step summary of a CI job: the verdict, what failed, a table by area."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final

from enginewire.conformance.report import standing
from enginewire.conformance.report.human import explained
from enginewire.conformance.report.reproduction import kit_line
from enginewire.conformance.report.text import shortened, visible
from enginewire.conformance.report.verdict import AREAS, area_counts, tally, verdict
from enginewire.conformance.running.outcome import Outcome, Report, Status

MOST_EXPLAINED: Final = 50
"""GitHub refuses a summary of more than a megabyte."""

COLUMNS: Final = (
    ("passed", (Status.PASS, Status.NEG_PASS)),
    ("failed", (Status.FAIL, Status.XPASS, Status.FLAKY, Status.ERROR)),
    ("warned", (Status.WARN,)),
    ("known", (Status.XFAIL,)),
    ("blocked", (Status.BLOCKED,)),
    ("not applicable", (Status.NOT_APPLICABLE,)),
    ("not run", (Status.NOT_RUN,)),
)


def render(report: Report) -> str:
    """The summary."""
    sign = "✅" if report.is_conformant else "❌"
    head = [f"## {sign} enginewire.v1: {verdict(report)}", ""]
    if report.unreachable:
        return "\n".join([*head, f"{_code(report.target)}: {_html(report.unreachable)}"]) + "\n"
    judged = f"{_code(report.engine)} at {_code(report.target)}: {tally(report)}."
    where = [f"- {_html(line)}" for line in standing.lines(report)]
    return "\n".join([*head, judged, "", *where, "", *_failures(report), *_table(report)]) + "\n"


def _failures(report: Report) -> Iterator[str]:
    unexpected = [outcome for outcome in report.unexpected if outcome.status is not Status.BLOCKED]
    for outcome in unexpected[:MOST_EXPLAINED]:
        yield from _failure(report, outcome)
    if len(unexpected) > MOST_EXPLAINED:
        yield f"… and {len(unexpected) - MOST_EXPLAINED} more."
        yield ""


def _failure(report: Report, outcome: Outcome) -> Iterator[str]:
    yield f"<details><summary><b>{outcome.status.value} {outcome.key}</b> {_html(outcome.message)}</summary>"
    yield ""
    yield f"> {outcome.requirement.text}"
    yield ""
    yield from _fenced("\n".join(visible(line) for line in explained(report, outcome)))
    yield "</details>"
    yield ""


def _table(report: Report) -> Iterator[str]:
    yield f"| area | {' | '.join(title for title, _ in COLUMNS)} |"
    yield f"|---|{'---:|' * len(COLUMNS)}"
    for area, counts in area_counts(report).items():
        cells = [sum(counts[status] for status in statuses) or "" for _, statuses in COLUMNS]
        yield f"| {area} {AREAS.get(area, '')} | {' | '.join(map(str, cells))} |"
    if not report.is_conformant and report.unexpected:
        yield ""
        yield f"Run the first one again: {_code(kit_line(report, report.unexpected[0]))}"


def _html(text: str) -> str:
    """Text inside a raw HTML block, where Markdown has no meaning but in links and mentions."""
    return re.sub(r"[@`*_\[\]|\\]", lambda found: f"&#{ord(found[0])};", escape(shortened(visible(text))))


def _code(text: str) -> str:
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {visible(text)} {ticks}" if "`" in text else f"`{visible(text)}`"


def _fenced(text: str) -> Iterator[str]:
    fence = "`" * max(3, _longest_run(text) + 1)
    yield f"{fence}text"
    yield text
    yield fence


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
