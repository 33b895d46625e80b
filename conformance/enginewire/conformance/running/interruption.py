"""Ends a run before it is over: a signal asks for it, or the server under test is gone.

Whoever waits for something lets the interruption wait beside it. Knows no check and writes no report.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import grpc

from enginewire.conformance.running.outcome import CutShort, ExitCode, Outcome, Status
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.presence import PATIENCE_SECONDS, absence

T = TypeVar("T")

CODES: Final = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}

EXIT_SECONDS: Final = 1.0
"""Between a connection that broke and the end of the process that held it."""


class Interrupted(Exception):
    """The run has to end before it is over."""

    def __init__(self, why: CutShort) -> None:
        super().__init__(str(why))
        self.why = why


class Interruption:
    """Says once that a run has to end, and why. `at_once` is called in that moment, before anything else."""

    def __init__(self) -> None:
        self.why: CutShort | None = None
        self.at_once: list[Callable[[], None]] = []
        self._is_asked = asyncio.Event()

    def end(self, why: CutShort) -> None:
        """End the run; the first reason counts."""
        self.why = self.why or why
        for act in self.at_once:
            act()
        self._is_asked.set()

    async def unless_asked(self, work: Awaitable[T]) -> T:
        """The result of the work. Raises Interrupted, with the work cancelled and over, when the run ends."""
        working, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._is_asked.wait())
        try:
            await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if is_cut := not working.done():
                working.cancel()
                await asyncio.wait({working})
        if is_cut and self.why:
            raise Interrupted(self.why)
        return working.result()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the run; a second one ends the process, which holds nothing any more."""
        loop = asyncio.get_running_loop()
        for number in CODES:
            # Also where SIGINT is ignored, as in what a shell started in the background.
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in CODES:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self.why and self.why.code in CODES.values():
            os._exit(CODES[number])
        self.end(CutShort("interrupted", CODES[number], f"by {number.name}"))


class Watched(Protocol):
    """A process that the kit started."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""

    async def ended(self, within: float) -> int:
        """The exit code; TimeoutError when the process runs on."""

    def last_lines(self) -> Sequence[str]:
        """What it printed last."""


@dataclass
class Life:
    """Whether the server that a run judges is still there. `process`: where the kit started it."""

    connection: Connection
    process: Watched | None = None
    patience: float = PATIENCE_SECONDS
    """Seconds."""

    async def end_after(self, outcome: Outcome) -> str:
        """How the server ended; empty while it is there. Waits only where the check lost its connection."""
        if not (self.process and self.process.exit_code is not None) and not _lost_connection(outcome):
            return ""
        if self.process:
            return await self._end_of(self.process)
        return await absence(self.connection, self.patience)

    async def _end_of(self, process: Watched) -> str:
        try:
            code = await process.ended(EXIT_SECONDS)
        except TimeoutError:
            return ""
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"{how}; last lines of its output: {' | '.join(process.last_lines()) or 'none'}"


def died(during: Sequence[str], how: str) -> CutShort:
    """The end of a run whose server ended while these checks ran."""
    detail = f"while {', '.join(during)} ran: {how}"
    return CutShort("the server died", ExitCode.UNREACHABLE, detail)


def _lost_connection(outcome: Outcome) -> bool:
    # A check that breaks connections on purpose passes.
    is_broken = outcome.status is not Status.PASS
    return is_broken and any(each.code is grpc.StatusCode.UNAVAILABLE for each in outcome.exchanges)
