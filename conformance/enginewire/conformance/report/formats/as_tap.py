"""The report as TAP 14, the line protocol that test harnesses of many languages read."""

from __future__ import annotations

import json
from collections.abc import Iterator

from enginewire.conformance.report.reproduction import kit_line
from enginewire.conformance.report.text import visible
from enginewire.conformance.report.verdict import tally, verdict
from enginewire.conformance.running.outcome import Outcome, Report, Status


def render(report: Report) -> str:
    """One test point per outcome; what did not run is a SKIP, a known failure a TODO."""
    points = [
        line for number, outcome in enumerate(report.outcomes, 1) for line in _point(report, number, outcome)
    ]
    head = ["TAP version 14", f"1..{len(report.outcomes)}", f"# {_escaped(report.target)}"]
    foot = [f"# {tally(report)}: {verdict(report)}"]
    if report.no_verdict:
        foot.append(f"Bail out! {_escaped(report.no_verdict)}")
    return "\n".join([*head, *points, *foot]) + "\n"


def _point(report: Report, number: int, outcome: Outcome) -> Iterator[str]:
    is_failure = report.fails(outcome) or outcome.status is Status.XFAIL
    result = "not ok" if is_failure else "ok"
    yield f"{result} {number} - {outcome.key} {_escaped(outcome.requirement.text)}{_directive(outcome)}"
    if is_failure or outcome.status is Status.WARN:
        yield from _diagnostic(report, outcome)


def _directive(outcome: Outcome) -> str:
    if outcome.status is Status.XFAIL:
        return f" # TODO {_escaped(outcome.known)}"
    if outcome.status in (Status.NOT_APPLICABLE, Status.BLOCKED, Status.NOT_RUN):
        return f" # SKIP {outcome.status.value}: {_escaped(outcome.message)}"
    return ""


def _diagnostic(report: Report, outcome: Outcome) -> Iterator[str]:
    facts = {
        "status": outcome.status.value,
        "message": outcome.message,
        "expected": outcome.expected,
        "seen": outcome.seen,
        "repro": kit_line(report, outcome),
    }
    yield "  ---"
    yield from (f"  {name}: {json.dumps(value)}" for name, value in facts.items())  # JSON strings are YAML
    yield "  ..."


def _escaped(text: str) -> str:
    """Without a `#` that would begin a directive."""
    return visible(text).replace("\\", "\\\\").replace("#", "\\#")
