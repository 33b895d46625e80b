"""What every command of ours has around it, from the first moment on: its standard streams, and a quiet end.

The end is quiet after Ctrl-C, and when whoever reads the output stops reading, as `head` does.

Knows nothing about what the commands do.
"""

from __future__ import annotations

import functools
import io
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_NOT_READ: Final = 128 + signal.SIGPIPE
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
        # Read when gRPC is imported. Ours start programs but never use gRPC in a fork, for which it would
        # prepare, and tell whoever looks at standard error when it cannot.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        code = EXIT_NOT_READ
        try:
            with reader_may_leave():
                code = main(argv)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except RuntimeError as error:
            # Python 3.11 makes one of a Ctrl-C that comes while a class is made, as in an import.
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            return EXIT_INTERRUPTED
        finally:
            _give_up_unwritten_log()
        return code

    return run


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """What nobody reads any more is thrown away: the rest of the block, and all that is printed later."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_left(sys.stdout.fileno()):
            raise
        # What is still in the buffer would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _give_up_unwritten_log() -> None:
    """Where the disk is full, the interpreter would end with 120 for what is still in the buffer."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _is_left(pipe: int) -> bool:
    """True when nobody holds the other end; a socket may be what broke."""
    looking = select.poll()
    looking.register(pipe, 0)
    return any(events & select.POLLERR for _, events in looking.poll(0))


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
