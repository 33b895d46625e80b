"""Whether files have been replaced or rewritten since somebody looked. Opens nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps(paths: Iterable[Path]) -> Stamps:
    """What changes when somebody replaces or rewrites a file; None for one that cannot be found."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino, info.st_size
