"""A line that shows how far a run is, while somebody watches it in a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Final, TextIO

from enginewire.conformance.running.outcome import FAILED, Outcome, Status

ERASE: Final = "\r\x1b[K"


class Progress:
    """Told of each outcome. Writes nothing unless `output` is a terminal."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = sys.stderr if output is None else output
        self._counts: Counter[Status] = Counter()

    def __call__(self, outcome: Outcome) -> None:
        """Replace the line."""
        self._counts[outcome.status] += 1
        if self._output.isatty():
            self._output.write(f"{ERASE}{self._line(outcome)}")
            self._output.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._output.isatty():
            self._output.write(ERASE)
            self._output.flush()

    def _line(self, outcome: Outcome) -> str:
        failed = sum(self._counts[status] for status in FAILED | {Status.ERROR})
        return f"{self._counts.total()} judged, {failed} failed; last: {outcome.status.value} {outcome.key}"
