"""A terminal for tests: a program on a pty of its own, what it shows and what is typed."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from types import TracebackType
from typing import Self

from tests.patience import PATIENCE_SECONDS

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
# Makes the pty the terminal that Ctrl-C is typed at, then becomes the program.
ATTACH = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
BRACKETED_PASTE, PROMPT = "\x1b[?2004h", "⌨"
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """Runs `argv` while entered. `raw` is everything it has shown, escape sequences included."""

    def __init__(self, argv: list[str], columns: int = 120, **environment: str) -> None:
        self.raw = ""
        self._argv = argv
        self._columns = columns
        # A terminal that nobody draws answers no questions about its cursor.
        self._environment = (
            os.environ | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"} | environment
        )
        self._news = threading.Condition()
        self._seen = 0

    def __enter__(self) -> Self:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, self._columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ATTACH, *self._argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=self._environment,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(PATIENCE_SECONDS)
        os.close(self._master)

    @property
    def text(self) -> str:
        """What it has shown, without escape sequences; PROMPT is where it began to wait for a line."""
        return ESCAPES.sub("", self.raw.replace(BRACKETED_PASTE, PROMPT)).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """As a person does; Enter is a carriage return."""
        os.write(self._master, text.replace("\n", "\r").encode())

    def until(self, expected: str) -> str:
        """Wait for a text behind the last one that was waited for; returns what is between them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._news:
            while (place := self.text.find(expected, self._seen)) < 0:
                assert self._news.wait(deadline - time.monotonic()), f"no {expected!r} in {self.text!r}"
        between = self.text[self._seen : place]
        self._seen = place + len(expected)
        return between

    def exit_code(self) -> int:
        """Wait for its end, and for all it has shown."""
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code

    def _read(self) -> None:
        data = b""
        while True:
            try:
                chunk = os.read(self._master, 65_536)
            except OSError:  # how Linux says that nobody holds the other end
                chunk = b""
            data += chunk
            with self._news:
                self.raw = data.decode(errors="ignore")
                self._news.notify_all()
            if not chunk:
                return
