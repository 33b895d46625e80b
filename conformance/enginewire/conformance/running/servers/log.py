"""What a launched server printed about the internal errors that it answered with.

A server keeps what went wrong inside of it out of its answers, and prints it beside an id.
Knows nothing about reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from enginewire.conformance.running.outcome import UNEXPECTED, Outcome

ERROR_ID: Final = "error_id"
MOST_CHARACTERS: Final = 1000

LinesWith = Callable[[str], Iterable[str]]
"""The lines of a server's output that a word is in."""


def with_log(outcome: Outcome, lines_with: LinesWith) -> Outcome:
    """The outcome with what was printed about the last internal error of its calls, if it is unexpected."""
    if outcome.status not in UNEXPECTED:
        return outcome
    lines = [line for error_id in _error_ids(outcome) for line in lines_with(error_id)]
    return replace(outcome, log=lines[-1][:MOST_CHARACTERS]) if lines else outcome


def _error_ids(outcome: Outcome) -> Iterator[str]:
    for exchange in outcome.exchanges:
        if (detail := exchange.detail) and detail.metadata.get(ERROR_ID):
            yield detail.metadata[ERROR_ID]
