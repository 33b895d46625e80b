"""The report for programs. `SCHEMA` grows when a field changes its meaning or goes away."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from enginewire.conformance.report import standing
from enginewire.conformance.report.calls import calls_of, is_traced
from enginewire.conformance.report.reproduction import grpcurl_lines, kit_line
from enginewire.conformance.report.verdict import counts
from enginewire.conformance.requirements.levels import level_of
from enginewire.conformance.running.outcome import Outcome, Report
from enginewire.v1.revision import CONTRACT_REVISION
from enginewire.version import __version__

SCHEMA: Final = "enginewire-conformance/1"


def render(report: Report) -> str:
    """The document; docs/conformance.md describes its fields."""
    return json.dumps(_document(report), indent=1) + "\n"


def _document(report: Report) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "kit_version": __version__,
        "contract_revision": CONTRACT_REVISION,
        "verdict": report.exit_code().name,
        "exit_code": int(report.exit_code()),
        "unreachable": report.unreachable,
        "cut_short": str(report.cut_short or ""),
        "strict": report.strict,
        "target": report.target,
        "engine": report.engine,
        "bounds": report.bounds,
        "seconds": round(report.seconds, 3),
        "standing": standing.document(report),
        "watched": report.watched,
        "counts": {status.value: number for status, number in counts(report)},
        "outcomes": [_outcome(report, outcome) for outcome in report.outcomes],
    }


def _outcome(report: Report, outcome: Outcome) -> dict[str, object]:
    requirement = outcome.requirement
    facts: dict[str, object] = {
        "key": outcome.key,
        "id": requirement.id,
        "level": requirement.level,
        "of_level": level_of(requirement),
        "profile": requirement.profile,
        "gate": requirement.gate,
        "anchor": requirement.anchor,
        "text": requirement.text,
        "status": outcome.status.value,
        "message": outcome.message,
        "seconds": round(outcome.seconds, 3),
    }
    return facts | (_evidence(report, outcome) if is_traced(outcome) else {})


def _evidence(report: Report, outcome: Outcome) -> dict[str, object]:
    return {
        "expected": outcome.expected,
        "seen": outcome.seen,
        "log": outcome.log,
        "known": outcome.known,
        "repro": [kit_line(report, outcome), *grpcurl_lines(report, outcome)],
        "calls": [asdict(call) for call in calls_of(outcome)],
    }
