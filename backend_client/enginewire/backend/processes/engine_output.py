"""What a launched engine prints, and how it reaches whoever launched it.

On a terminal: one bar while it loads, then warnings and errors. Elsewhere, and for whoever asks for log
lines: every line as it is. Knows the log lines of the engine server, and nothing about processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, TextIO

from enginewire.backend.processes.terminal_text import harmless

PROGRESS: Final = re.compile(r"(\S+) (\d+) %")
DEVICE: Final = "device: "
READY: Final = "ready: "
# Where each phase begins on the bar and how much of it it takes, as it is with a small model on two cores.
PHASES: Final = {"import": (0.0, 0.5), "load": (0.5, 0.4), "warm-up": (0.9, 0.1)}
SHOWN_LEVELS: Final = ("warning", "error", "critical")
# Who gives one of these, or sets the variable of its name, wants to see lines.
LOG_OPTIONS: Final = ("--log-format", "--log-level", "--log-requests")
FORMAT_VARIABLE: Final = "ENGINEWIRE_LOG_FORMAT"
BAR_CELLS: Final = 24
REDRAW_SECONDS: Final = 0.2
CLEAR_LINE: Final = "\r\x1b[2K"


def wants_log_lines(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> bool:
    """True when the arguments of an engine server, or its variables, say something about its log."""
    flags = {argument.partition("=")[0] for argument in arguments}
    variables = [f"ENGINEWIRE_{option[2:].replace('-', '_').upper()}" for option in LOG_OPTIONS]
    return not flags.isdisjoint(LOG_OPTIONS) or any(environment.get(name) for name in variables)


class EngineOutput:
    """Takes what an engine server prints. `device` is where its model runs, once it has said so."""

    def __init__(self, out: TextIO | None, arguments: Sequence[str] = ()) -> None:
        """`arguments` are those of the engine server. Without `out` nothing is shown."""
        self.device = ""
        self._out = out
        is_terminal = out is not None and out.isatty()
        self._passes_lines = out is not None and (not is_terminal or wants_log_lines(arguments))
        self._bar = LoadingBar(out) if out is not None and not self._passes_lines else None
        self._is_pretty = is_terminal and self._passes_lines
        self._begun = ""
        self._held: list[str] = []

    @property
    def log_options(self) -> tuple[str, ...]:
        """What the engine server has to be told before its arguments: which of its lines these are."""
        if self._is_pretty:
            return () if os.environ.get(FORMAT_VARIABLE) else ("--log-format", "pretty")
        return () if self._passes_lines else ("--log-format", "json")

    def show(self, text: str) -> str:
        """Take the next piece; returns what of it people should read if nothing follows."""
        if self._passes_lines:
            self._write(text)
        *lines, self._begun = (self._begun + text).split("\n")
        return "".join(self._take(line) for line in lines)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """While the engine runs: the bar moves on, and is gone in the end."""
        if self._bar is None:
            yield
            return
        self._bar.begin()
        moving = asyncio.create_task(self._bar.move(), name="loading bar")
        try:
            yield
        finally:
            moving.cancel()
            self._bar.clear()

    def loaded(self) -> None:
        """The engine is ready, perhaps before its line says so: others may write from now on."""
        if self._bar is not None:
            self._bar.clear()
        self._release()

    def note(self, line: str) -> None:
        """Say something about the engine itself."""
        self._write(f"{line}\n")

    def _take(self, line: str) -> str:
        """A whole line; returns it for people."""
        event, level, more = fields_of(line)
        readable = harmless(f"{event}\n{more}")
        if event.startswith(DEVICE):
            self.device = event.removeprefix(DEVICE)
        if self._bar is not None:
            self._to_terminal(event, level, readable)
        return readable

    def _to_terminal(self, event: str, level: str, readable: str) -> None:
        assert self._bar is not None
        if progress := PROGRESS.fullmatch(event):
            self._bar.reach(progress[1], int(progress[2]) / 100)
        elif level in SHOWN_LEVELS:
            # If it dies of this, its last lines say it.
            self._held.append(readable)
        if event.startswith(READY):
            self.loaded()
        elif not self._bar.is_loading:
            self._release()

    def _release(self) -> None:
        self._write("".join(self._held))
        self._held.clear()

    def _write(self, text: str) -> None:
        if self._out is not None:
            write_quietly(self._out, text)


def write_quietly(out: TextIO, text: str) -> None:
    """A closed standard error shall not end anything."""
    with contextlib.suppress(OSError):
        out.write(text)
        out.flush()


def fields_of(line: str) -> tuple[str, str, str]:
    """Event, level and what follows it on lines of its own. What is no log line is a warning as it stands."""
    with contextlib.suppress(ValueError):
        fields = json.loads(line)
        if isinstance(fields, dict) and isinstance(fields.get("event"), str):
            more = fields.get("exception") or fields.get("stack") or ""
            return (
                " ".join(fields["event"].split()),
                str(fields.get("level", "")),
                f"{more}\n" if more else "",
            )
    return line, "warning", ""


class LoadingBar:
    """One line of a terminal that says how far the engine is."""

    def __init__(self, out: TextIO) -> None:
        self.is_loading = False
        self._out = out
        self._phase = ""
        self._done = 0.0
        self._began_at = 0.0

    def begin(self) -> None:
        """A life of the engine begins."""
        self.is_loading = True
        self._phase, self._done, self._began_at = "start", 0.0, time.monotonic()

    def reach(self, phase: str, done: float) -> None:
        """`done` of the phase, from 0 to 1. What comes late draws nothing any more."""
        begin, share = PHASES.get(phase, (self._done, 0.0))
        self._phase, self._done = phase, begin + share * done
        if self.is_loading:
            self._draw()

    def clear(self) -> None:
        """Take the line away."""
        if self.is_loading:
            self.is_loading = False
            write_quietly(self._out, CLEAR_LINE)

    async def move(self) -> None:
        """Redraw until cancelled, so that one sees time pass."""
        while True:
            if self.is_loading:
                self._draw()
            await asyncio.sleep(REDRAW_SECONDS)

    def _draw(self) -> None:
        num_full = round(self._done * BAR_CELLS)
        bar = "━" * num_full + "╌" * (BAR_CELLS - num_full)
        seconds = time.monotonic() - self._began_at
        line = f"loading {bar} {self._done:4.0%}  {self._phase}, {seconds:.0f} s"
        write_quietly(self._out, CLEAR_LINE + line[: shutil.get_terminal_size().columns - 1])
