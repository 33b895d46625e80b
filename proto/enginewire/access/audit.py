"""The audit log: who called what, how it ended, how much it was. One JSON line per call.

Never text, token ids or keys. A thread writes, so that neither a slow disk nor a full one holds up service;
what cannot be written is counted. Knows nothing about gRPC and HTTP.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

STDOUT: Final = "-"
MOST_WAITING: Final = 10_000
"""Lines in memory while the disk is slow; further ones are lost."""
LOOK_SECONDS: Final = 1.0
"""How often the file is looked for at its path, where logrotate may have put a new one."""
COMPLAIN_SECONDS: Final = 60.0
FLUSH_SECONDS: Final = 2.0


class AuditLog:
    """Lines for a file, which is appended to, or for standard output."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the file cannot be opened."""
        self._path = None if path == STDOUT else Path(path)
        self._file = 1 if self._path is None else _open(self._path)
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._looked_at = self._complained_at = -COMPLAIN_SECONDS
        self.num_written = 0
        self.num_lost = 0
        self._thread = threading.Thread(target=self._write_all, name="audit log", daemon=True)
        self._thread.start()

    def call(
        self, *, who: str, method: str, outcome: str, seconds: float, **more: str | float | None
    ) -> None:
        """One call has ended.

        `more` are counts, durations in seconds, and its request id; None is left out.
        """
        fields: dict[str, str | float] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": who or "anybody",
            "method": method,
            "outcome": outcome,
            **{name: value for name, value in more.items() if value is not None},
            "seconds": round(seconds, 6),
        }
        try:
            self._lines.put_nowait(json.dumps(fields).encode("ascii") + b"\n")
        except queue.Full:
            self.num_lost += 1

    def close(self) -> None:
        """Write what waits, if that does not take long."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(FLUSH_SECONDS)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._follow_rotation()
                _write_whole(self._file, line)
                self.num_written += 1
            except OSError as error:
                self.num_lost += 1
                self._complain(error)

    def _follow_rotation(self) -> None:
        now = time.monotonic()
        if self._path is None or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            is_there = os.path.samestat(self._path.stat(), os.fstat(self._file))
        except OSError:
            is_there = False
        if not is_there:
            new = _open(self._path)
            os.close(self._file)
            self._file = new

    def _complain(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            reason = error.strerror or type(error).__name__
            log.error("--audit-log: %s; service goes on, %d lines are lost so far", reason, self.num_lost)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _write_whole(file: int, line: bytes) -> None:
    """A disk that is full takes a part of a line; the rest is one that is lost."""
    if (written := os.write(file, line)) < len(line):
        os.write(file, line[written:])
