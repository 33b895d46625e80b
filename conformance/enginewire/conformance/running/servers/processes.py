"""Looks at the process table: who descends from whom, and who is still there. On Linux."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final

TABLE: Final = Path("/proc")
DEAD: Final = ("Z", "X")


def can_look() -> bool:
    """False where there is no process table to read."""
    return bool(_processes())


def descendants(pid: int) -> set[int]:
    """Every process below one, however deep and in whatever group."""
    children: dict[int, list[int]] = {}
    for each, (_, parent, _) in _processes().items():
        children.setdefault(parent, []).append(each)
    found: set[int] = set()
    due = [pid]
    while due:
        below = children.get(due.pop(), [])
        found.update(below)
        due += below
    return found


def alive(pids: Collection[int], group: int) -> set[int]:
    """Those of `pids` and of a process group that still run."""
    return {
        pid
        for pid, (state, _, its_group) in _processes().items()
        if state not in DEAD and (pid in pids or its_group == group)
    }


def end(pids: Collection[int]) -> None:
    """Kill what should not be there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[str, int, int]]:
    """State, parent and group of every process; empty where there is no process table to read."""
    found = {}
    for entry in TABLE.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may contain anything.
            state, parent, group = entry.read_text().rpartition(")")[2].split()[:3]
            found[int(entry.parent.name)] = (state, int(parent), int(group))
    return found
