"""What is compiled and stays for the next start, in a folder that belongs to this user alone.

Who can write a library there can run code in this process, so nothing is loaded from a folder or a file
that anybody else owns or may write to. Both are opened first and then looked at: what was checked is what
is loaded, wherever the path points by then. Knows nothing about what is compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MOST_LIBRARIES = 16
"""Others come with a new version, a new compiler or another processor; the oldest go."""


class LibraryCache:
    """The folder; it need not be there, and nothing fails where there cannot be one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def holds(self, name: str) -> bool:
        """Whether a library of that name is there, and safe."""
        try:
            with self._holding(name):
                return True
        except OSError:
            return False

    def load(self, name: str) -> ctypes.PyDLL | None:
        """The library of that name; None when there is none that is safe and sound."""
        try:
            with self._holding(name) as folder:
                return ctypes.PyDLL(f"/proc/self/fd/{folder}/{name}")
        except OSError:
            return None

    def store(self, name: str, library: bytes) -> None:
        """Keep a library, at once or not at all, and give up the oldest ones."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                _write(folder, name, library)
                _trim(folder)

    @contextlib.contextmanager
    def _holding(self, name: str) -> Iterator[int]:
        """The folder's descriptor; raises OSError unless a file of that name is this user's alone."""
        with self._opened() as folder:
            _check_ours(os.stat(name, dir_fd=folder, follow_symlinks=False), stat.S_IFREG)
            yield folder

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder; raises OSError unless it is this user's alone."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_ours(os.fstat(folder), stat.S_IFDIR)
            yield folder
        finally:
            os.close(folder)


def user_cache_folder() -> Path:
    """`$XDG_CACHE_HOME/enginewire`, or the same below `~/.cache`."""
    chosen, usual = Path(os.environ.get("XDG_CACHE_HOME", "")), Path(os.path.expanduser("~/.cache"))
    # A user without a home has no such folder: nothing can be made below the last one.
    return next(path for path in (chosen, usual, Path(os.devnull)) if path.is_absolute()) / "enginewire"


def private_folder(name: str) -> Path | None:
    """A folder of that name in it, for others to keep files in; None where none is this user's alone."""
    folder = user_cache_folder()
    try:
        for path in (folder, folder / name):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_ours(path.lstat(), stat.S_IFDIR)
    except OSError:
        return None
    return folder / name


def _check_ours(found: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(found.st_mode) != kind or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError("not this user's alone")


def _write(folder: int, name: str, content: bytes) -> None:
    draft = f"{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


def _trim(folder: int) -> None:
    with os.scandir(folder) as entries:
        ages = {entry.name: entry.stat().st_mtime_ns for entry in entries if not entry.is_dir()}
    for name in sorted(ages, key=ages.__getitem__)[:-MOST_LIBRARIES]:
        os.unlink(name, dir_fd=folder)
