"""What files hold now: looked at when somebody asks, read again when they have changed. Opens none itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Stamps = tuple[tuple[int, int, int] | None, ...]
Read = TypeVar("Read")


class WatchedFiles(Generic[Read]):
    """The newest usable content of some files. Threads may share it.

    Files that have changed and cannot be used are logged once and counted; what was read before stays in use.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[], Read],
        what: str,
        unusable: type[Exception],
        read_first: Callable[[], Read] | None = None,
    ) -> None:
        """`what` the files hold is for the log. Raises what `read` does, `unusable` among it.

        `read_first` is for here alone, where it may take its time.
        """
        self.paths = tuple(paths)
        self._read = read
        self._what = what
        self._unusable = unusable
        self.num_failures = 0
        self._lock = threading.Lock()
        self._seen = stamps(self.paths)
        self._content = (read_first or read)()

    def current(self) -> Read:
        """What counts now; the same object as long as the files are the same."""
        with self._lock:
            seen = stamps(self.paths)
            if seen != self._seen:
                self._seen = seen
                self._read_again()
            return self._content

    def _read_again(self) -> None:
        try:
            self._content = self._read()
        except self._unusable as error:
            self.num_failures += 1
            log.warning("the %s from before stays in use: %s", self._what, error)
        else:
            log.info("%s: a new %s is in use", ", ".join(map(str, self.paths)), self._what)


def stamps(paths: Iterable[Path]) -> Stamps:
    """What changes when somebody replaces or rewrites a file; None for one that cannot be found."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino, info.st_size
