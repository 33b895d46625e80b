"""The report for a terminal: what is unexpected first, then a table by area, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from enginewire.conformance.report import standing
from enginewire.conformance.report.calls import call_of
from enginewire.conformance.report.reproduction import grpcurl_lines, kit_line
from enginewire.conformance.report.text import WIDTH, visible
from enginewire.conformance.report.verdict import AREAS, area_counts, tally, verdict
from enginewire.conformance.running.outcome import Outcome, Report, Status
from enginewire.conformance.wire.exchange import Exchange

TRACED_CALLS: Final = 3
TRACED_MESSAGES: Final = 6
MOST_NAMED: Final = 6


def render(report: Report, *, traced: bool = False) -> str:
    """The whole report. `traced`: with every call of what is unexpected."""
    judged = [*_unexpected(report, traced), *_known(report), *_without_verdict(report)]
    return "\n".join(map(visible, [*_head(report), *judged, *_areas(report), *_foot(report)]))


def _head(report: Report) -> Iterator[str]:
    yield f"{report.target}: {report.engine}"
    yield report.unreachable or report.bounds
    yield ""


def _unexpected(report: Report, traced: bool) -> Iterator[str]:
    for outcome in report.unexpected:
        if outcome.status is not Status.BLOCKED:
            yield from explained(report, outcome, traced=traced)
            yield ""
    yield from by_reason(report, Status.BLOCKED)
    if report.cut_short:
        yield from by_reason(report, Status.NOT_RUN)


def by_reason(report: Report, status: Status) -> Iterator[str]:
    """One line per reason for all outcomes of this status that have one; a few are named."""
    reasons: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        if outcome.status is status and outcome.message:
            reasons.setdefault(outcome.message, []).append(outcome.key)
    for reason, keys in reasons.items():
        named = f" ({', '.join(keys)})" if len(keys) <= MOST_NAMED else ""
        yield f"{status.value} {len(keys)}{named}: {reason}"


def explained(report: Report, outcome: Outcome, *, traced: bool = False) -> Iterator[str]:
    """One outcome: what the contract says, what was seen, the calls, how to see it again."""
    yield f"{outcome.status.value} {outcome.key}  {outcome.message}"
    yield f"  contract: {outcome.requirement.text}"
    if outcome.expected:
        yield f"  expected: {outcome.expected}"
    if outcome.seen:
        yield f"  seen:     {outcome.seen}"
    if outcome.log:
        yield f"  log:      {outcome.log}"
    if outcome.known:
        yield f"  known:    {outcome.known}"
    exchanges = outcome.exchanges if traced else outcome.exchanges[-TRACED_CALLS:]
    for exchange in exchanges:
        yield from (f"  {line}" for line in trace(exchange))
    yield f"  repro:    {kit_line(report, outcome)}"
    yield from (f"  or:       {line}" for line in grpcurl_lines(report, outcome))


def trace(exchange: Exchange) -> Iterator[str]:
    """One call in a few lines, times in milliseconds since its start."""
    call = call_of(exchange, most=TRACED_MESSAGES, width=WIDTH)
    yield f"call:     {call.method} {call.request}"
    if call.left_out:
        total = len(call.messages) + call.left_out
        yield f"          ({total} messages, the first and last of them:)"
    for received in call.messages:
        yield f"{received.ms:8.1f} ms {received.text}"
    yield f"{call.ms:8.1f} ms {call.status}"
    if call.detail:
        yield f"            {call.detail}"


def _known(report: Report) -> Iterator[str]:
    for outcome in report.outcomes:
        if outcome.status is Status.XFAIL:
            yield f"XFAIL {outcome.key}: {outcome.message} ({outcome.known})"


def _without_verdict(report: Report) -> Iterator[str]:
    for outcome in report.without_verdict:
        yield f"N/A {outcome.key}: {outcome.message}"
    yield from by_reason(report, Status.PASS)


def _areas(report: Report) -> Iterator[str]:
    for area, counts in area_counts(report).items():
        parts = [f"{counts[status]} {status.value}" for status in Status if counts[status]]
        yield f"{area}  {AREAS.get(area, ''):15} {', '.join(parts)}"
    yield ""


def _foot(report: Report) -> Iterator[str]:
    yield from standing.lines(report)
    yield f"{tally(report)} in {report.seconds:.1f} s"
    yield verdict(report)
