"""The report as one HTML file that needs nothing beside it.

Everything from the target is escaped, and the page's policy lets no script run but the one below, so
that even a string that slipped through could do nothing.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Final

from enginewire.conformance.report import standing
from enginewire.conformance.report.calls import Call, calls_of, is_traced
from enginewire.conformance.report.reproduction import grpcurl_lines, kit_line
from enginewire.conformance.report.text import visible
from enginewire.conformance.report.verdict import AREAS, by_area, counts, verdict
from enginewire.conformance.running.outcome import ExitCode, Outcome, Report, Status
from enginewire.v1.revision import CONTRACT_REVISION
from enginewire.version import __version__

FOLDER: Final = Path(__file__).parent

CLASSES: Final = {
    Status.PASS: "pass",
    Status.NEG_PASS: "negpass",
    Status.FAIL: "fail",
    Status.XPASS: "fail",
    Status.FLAKY: "fail",
    Status.ERROR: "error",
    Status.WARN: "warn",
    Status.XFAIL: "known",
    Status.BLOCKED: "blocked",
    Status.NOT_APPLICABLE: "na",
    Status.NOT_RUN: "notrun",
}

VERDICT_CLASSES: Final = {ExitCode.CONFORMANT: "pass", ExitCode.VIOLATION: "fail"}

ORDER: Final = (
    *(Status.FAIL, Status.XPASS, Status.FLAKY, Status.ERROR, Status.WARN, Status.XFAIL, Status.BLOCKED),
    *(Status.PASS, Status.NEG_PASS, Status.NOT_APPLICABLE, Status.NOT_RUN),
)

NOT_JUDGED: Final = (Status.NOT_APPLICABLE, Status.NOT_RUN)


def render(report: Report) -> str:
    """The whole page."""
    style, script = (FOLDER / "page.css").read_text(), (FOLDER / "page.js").read_text()
    parts = [*_head(report, style, script), *_summary(report), *_matrix(report), *_list(report)]
    return "\n".join([*parts, *_foot(report), f"<script>{script}</script>", "</body>", "</html>", ""])


def _head(report: Report, style: str, script: str) -> Iterator[str]:
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{_text(verdict(report))} · {_text(report.engine or report.target)}</title>"
    yield f"<style>{style}</style>\n</head>\n<body>"


def _summary(report: Report) -> Iterator[str]:
    kind = VERDICT_CLASSES.get(report.exit_code(), "error")
    yield f'<header class="verdict {kind}">'
    yield '<div class="bar"><span class="brand">enginewire.v1 conformance</span>'
    yield '<button type="button" id="theme" title="light or dark">◐</button></div>'
    yield f"<h1>{_text(verdict(report).capitalize())}</h1>"
    yield f'<p class="engine">{_text(report.engine)}</p>'
    yield f'<p class="facts"><code>{_text(report.target)}</code> · '
    yield f"{_text(report.no_verdict or report.bounds)} · "
    yield f"{report.seconds:.1f} s{' · strict' if report.strict else ''}</p>"
    yield from (f'<p class="facts">{_text(line)}</p>' for line in standing.lines(report))
    yield from _shares(report)
    yield "</header>"


def _shares(report: Report) -> Iterator[str]:
    """How much of everything that ran ended in which way: attributes of SVG need no inline style."""
    judged = [(status, number) for status, number in _in_order(report) if status not in NOT_JUDGED]
    total, start = sum(number for _, number in judged) or 1, 0.0
    yield '<svg class="shares" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
    for status, number in judged:
        width = 100 * number / total
        yield f'<rect class="{CLASSES[status]}" x="{start:.2f}" width="{width:.2f}" height="1"/>'
        start += width
    yield "</svg>"


def _matrix(report: Report) -> Iterator[str]:
    yield '<section class="matrix" aria-label="Results by area">'
    for area, outcomes in by_area(report).items():
        kind = " broken" if any(report.fails(outcome) for outcome in outcomes) else ""
        yield f'<div class="area{kind}"><h2><b>{_text(area)}</b> {_text(AREAS.get(area, ""))}</h2>'
        yield '<p class="cells">'
        yield "".join(_cell(outcome) for outcome in outcomes)
        yield f'</p><p class="score">{_score(outcomes)}</p></div>'
    yield "</section>"


def _cell(outcome: Outcome) -> str:
    kind, key = CLASSES[outcome.status], _text(outcome.key)
    title = f"{key} · {outcome.status.value}"
    return f'<a class="cell {kind}" href="#{key}" title="{title}" aria-label="{title}"></a>'


def _score(outcomes: list[Outcome]) -> str:
    passed = sum(outcome.status in (Status.PASS, Status.NEG_PASS) for outcome in outcomes)
    judged = sum(outcome.status not in NOT_JUDGED for outcome in outcomes)
    return f"{passed} of {judged}" if judged else "–"


def _list(report: Report) -> Iterator[str]:
    yield '<section class="results"><div class="filters" role="toolbar" aria-label="Filter">'
    yield f'<button type="button" class="all" aria-pressed="true">All {len(report.outcomes)}</button>'
    for status, number in _in_order(report):
        yield f'<button type="button" data-status="{status.value}" aria-pressed="false">'
        yield f'<i class="dot {CLASSES[status]}"></i>{status.value} {number}</button>'
    yield '<input type="search" placeholder="id or words" aria-label="Search"></div>'
    for outcome in sorted(report.outcomes, key=lambda outcome: ORDER.index(outcome.status)):
        yield from _row(report, outcome)
    yield '<p class="none" hidden>Nothing matches.</p></section>'


def _row(report: Report, outcome: Outcome) -> Iterator[str]:
    status, kind, key = outcome.status.value, CLASSES[outcome.status], _text(outcome.key)
    is_open = " open" if report.fails(outcome) else ""
    yield f'<details class="row {kind}" id="{key}" data-status="{status}"{is_open}>'
    yield f'<summary><span class="chip {kind}">{status}</span><span class="key">{key}</span>'
    yield f'<span class="text">{_prose(outcome)}</span></summary>'
    yield '<div class="body">'
    yield from _explanation(report, outcome)
    yield "</div></details>"


def _explanation(report: Report, outcome: Outcome) -> Iterator[str]:
    requirement = outcome.requirement
    if outcome.message:
        yield f'<p class="message">{_text(outcome.message)}</p>'
    yield '<dl class="facts">'
    shown = {"expected": outcome.expected, "seen": outcome.seen, "log": outcome.log, "known": outcome.known}
    yield from (
        f"<dt>{name}</dt><dd><code>{_text(value)}</code></dd>" for name, value in shown.items() if value
    )
    where = f"docs/contract.md#{requirement.anchor}"
    applies = f"{requirement.level}, profile {requirement.profile}"
    yield f"<dt>contract</dt><dd>{_text(where)} ({_text(applies)})</dd></dl>"
    if is_traced(outcome):
        yield from (line for call in calls_of(outcome) for line in _call(call))
        yield from _commands([kit_line(report, outcome), *grpcurl_lines(report, outcome)])


def _commands(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield '<div class="command"><button type="button" class="copy">Copy</button>'
        yield f"<pre>{_text(line)}</pre></div>"


def _call(call: Call) -> Iterator[str]:
    yield f'<div class="call"><p class="method"><b>{_text(call.method)}</b> '
    yield f'<code>{_text(call.request)}</code></p><table class="trace">'
    half = len(call.messages) // 2 if call.left_out else -1
    for number, received in enumerate(call.messages):
        if number == half:
            yield f'<tr class="gap"><td></td><td></td><td></td><td>… {call.left_out} more …</td></tr>'
        yield _line(received.ms, call.ms, f"{received.size} B", received.text)
    yield _line(call.ms, call.ms, "", call.status, "end")
    if call.detail:
        yield f'<tr class="end"><td></td><td></td><td></td><td>{_text(call.detail)}</td></tr>'
    yield "</table></div>"


def _line(ms: float, total: float, size: str, text: str, kind: str = "") -> str:
    """One moment of a call: when, where that is on the way from its start to its end, what."""
    place = 98 * min(ms / total, 1) if total else 0
    point = f'<rect x="{place:.1f}" width="2" height="8"/>'
    mark = f'<svg viewBox="0 0 100 8" aria-hidden="true"><path d="M0 4h100"/>{point}</svg>'
    cells = [f"{ms:.1f} ms", mark, size, _text(text)]
    return f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _in_order(report: Report) -> list[tuple[Status, int]]:
    return sorted(counts(report), key=lambda count: ORDER.index(count[0]))


def _foot(report: Report) -> Iterator[str]:
    yield f"<footer>enginewire-conformance {__version__}, contract revision {CONTRACT_REVISION}, "
    yield f"exit code {int(report.exit_code())}</footer>"


def _prose(outcome: Outcome) -> str:
    """The contract's sentence, its code spans as code."""
    pieces = outcome.requirement.text.split("`")
    return "".join(
        f"<code>{_text(piece)}</code>" if number % 2 else _text(piece) for number, piece in enumerate(pieces)
    )


def _text(text: str) -> str:
    return escape(visible(text), quote=True)


def _hash(content: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
