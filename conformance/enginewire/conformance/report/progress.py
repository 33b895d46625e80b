"""How far a run is: a line that changes while somebody watches a terminal, now and then a line in a log."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Final, TextIO

from enginewire.conformance.running.accompanied import IN_COMPANY
from enginewire.conformance.running.outcome import FAILED, Outcome, Status

ERASE: Final = "\r\x1b[K"
LOG_SECONDS: Final = 10.0
"""Between two lines of a log; what is over sooner has none."""


class Progress:
    """Told of each outcome. Entered for the time of a run, after which a terminal is as it was."""

    def __init__(self, output: TextIO | None = None, log_seconds: float = LOG_SECONDS) -> None:
        self._output = sys.stderr if output is None else output
        self._log_seconds = log_seconds
        self._counts: Counter[Status] = Counter()
        self._in_company = 0
        self._left = 0
        self._last = "nothing yet"
        self._started = time.monotonic()

    async def __aenter__(self) -> Progress:
        self._logging = None if self._output.isatty() else asyncio.ensure_future(self._log())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._logging:
            self._logging.cancel()
        else:
            self._write(ERASE)

    def __call__(self, outcome: Outcome, left: int) -> None:
        """One more; `left` are still to come. What is judged in company was judged before."""
        if outcome.key.endswith(IN_COMPANY):
            self._in_company += 1
        else:
            self._counts[outcome.status] += 1
        self._left = left
        self._last = f"{outcome.status.value} {outcome.key}"
        if self._output.isatty():
            self._write(f"{ERASE}{self._line()}")

    def say(self, text: str) -> None:
        """A line of its own."""
        self._write(f"{ERASE if self._output.isatty() else ''}enginewire-conformance: {text}\n")

    async def _log(self) -> None:
        while True:
            await asyncio.sleep(self._log_seconds)
            self._write(f"{self._line()}\n")

    def _write(self, text: str) -> None:
        # Nobody may read any more; the report is what counts.
        with suppress(BrokenPipeError):
            self._output.write(text)
            self._output.flush()

    def _line(self) -> str:
        done, failed = self._counts.total(), sum(self._counts[status] for status in FAILED | {Status.ERROR})
        seconds = (time.monotonic() - self._started) / max(done, 1) * self._left
        to_go = f", about {seconds:.0f} s to go" if self._left else ""
        again = f", {self._in_company} times in company" if self._in_company else ""
        return f"{done} of {done + self._left} judged, {failed} failed{again}{to_go}; last: {self._last}"
