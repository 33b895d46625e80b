"""The report as a badge: the JSON that shields.io's endpoint badge reads."""

from __future__ import annotations

import json
from typing import Final

from enginewire.conformance.report import standing
from enginewire.conformance.running.outcome import ExitCode, Report, Status
from enginewire.v1.revision import CONTRACT_REVISION

COLOURS: Final = {ExitCode.CONFORMANT: "brightgreen", ExitCode.VIOLATION: "red"}
NO_VERDICT: Final = "lightgrey"


def render(report: Report) -> str:
    """Label, message and colour."""
    code = report.exit_code()
    has_known = code is ExitCode.CONFORMANT and report.counts[Status.XFAIL] > 0
    return (
        json.dumps(
            {
                "schemaVersion": 1,
                "label": f"enginewire.v1 r{CONTRACT_REVISION}",
                "message": _message(report),
                "color": "yellow" if has_known else COLOURS.get(code, NO_VERDICT),
            }
        )
        + "\n"
    )


def _message(report: Report) -> str:
    passed = report.counts[Status.PASS] + report.counts[Status.NEG_PASS]
    reached = standing.short(report)
    failed = sum(report.fails(outcome) for outcome in report.outcomes)
    if report.exit_code() is ExitCode.CONFORMANT:
        known = report.counts[Status.XFAIL]
        held = reached or f"{passed} passed"
        return f"{held}, {known} known failures" if known else held
    if report.exit_code() is ExitCode.VIOLATION:
        return f"{reached}, {failed} failed" if reached else f"{failed} failed"
    return "no verdict"
