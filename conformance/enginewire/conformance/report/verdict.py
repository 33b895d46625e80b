"""The words for a verdict and for the areas of the contract, the same in all reports."""

from __future__ import annotations

from collections import Counter
from typing import Final

from enginewire.conformance.running.outcome import NO_VERDICT, ExitCode, Outcome, Report, Status

VERDICTS: Final = {
    ExitCode.CONFORMANT: "conformant as far as it was judged",
    ExitCode.VIOLATION: "NOT CONFORMANT",
    ExitCode.UNREACHABLE: "the target cannot be reached: no verdict",
    ExitCode.KIT_FAULT: "the kit failed: no verdict",
    ExitCode.NOTHING_RAN: "nothing ran: no verdict",
    ExitCode.DISTURBED: f"{NO_VERDICT[ExitCode.DISTURBED]}: no verdict",
    ExitCode.INTERRUPTED: "interrupted: no verdict",
    ExitCode.TERMINATED: "interrupted: no verdict",
}

AREAS: Final = {
    "INF": "Discovery",
    "HLT": "Health",
    "PRB": "Probes",
    "STR": "Stream",
    "USE": "Usage",
    "LIM": "Limits",
    "STP": "Stopping",
    "SAM": "Sampling",
    "LOG": "Logprobs",
    "SEQ": "Choices",
    "CAN": "Cancellation",
    "ABO": "Abort",
    "CON": "Concurrency",
    "DRN": "Drain",
    "CLN": "Clean-up",
    "LIF": "Lifecycle",
    "ERR": "Errors",
    "MSG": "Messages",
    "BPR": "Back-pressure",
    "MDT": "Metadata",
    "VER": "Versions",
    "EVT": "Events",
    "MUX": "Multiplexed",
    "RES": "Resume",
    "TOK": "Tokenizer",
    "WLD": "Load stream",
    "DIS": "Disaggregation",
    "KVE": "KV events",
    "MET": "Metrics",
    "EMB": "Embeddings",
    "LOR": "Adapters",
    "GDE": "Guided output",
    "CLI": "Backend",
    "RTG": "Routing hints",
    "SEC": "Keys",
    "TLS": "Encryption",
    "TRC": "Traces",
}


def verdict(report: Report) -> str:
    """The verdict in words."""
    if report.cut_short:
        return f"{report.cut_short}: no verdict"
    known = report.counts[Status.XFAIL]
    excused = f", {known} known failures apart" if known and report.is_conformant else ""
    return VERDICTS[report.exit_code()] + excused


def counts(report: Report) -> list[tuple[Status, int]]:
    """The counts that are not 0, in the order of Status."""
    return [(status, report.counts[status]) for status in Status if report.counts[status]]


def tally(report: Report) -> str:
    """The counts on one line."""
    return ", ".join(f"{number} {status.value}" for status, number in counts(report))


def by_area(report: Report) -> dict[str, list[Outcome]]:
    """The outcomes of each area, in the order of the contract."""
    areas: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        areas.setdefault(outcome.requirement.id[:3], []).append(outcome)
    return areas


def area_counts(report: Report) -> dict[str, Counter[Status]]:
    """How many outcomes of each status, per area."""
    return {
        area: Counter(outcome.status for outcome in outcomes) for area, outcomes in by_area(report).items()
    }
