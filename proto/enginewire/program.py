"""What every command of ours has around it, from the first moment on: its standard streams, and a quiet end.

Knows nothing about what the commands do.
"""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, Protocol

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
STANDARD_FILES: Final = (0, 1, 2)


class Main(Protocol):
    """A command."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Its exit code. The arguments are those of the process when none are given."""
        ...


def program(main: Main) -> Main:
    """The same command, with open standard streams; Ctrl-C before it listens for signals is no traceback."""

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        open_missing_streams()
        try:
            return main(argv)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED

    return run


def open_missing_streams() -> None:
    """Give what was started with `<&-` or `2>&-` a null device there.

    The next file or socket would get the number, and gRPC aborts when that is 0.
    """
    for number in STANDARD_FILES:
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or _stream(0, "r")
    sys.stdout = sys.stdout or _stream(1, "w")
    sys.stderr = sys.stderr or _stream(2, "w")


def _stream(number: int, mode: str) -> io.TextIOWrapper:
    stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper), "opened for text"
    return stream
