"""How many threads a product should use. Knows nothing about torch."""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def num_cores(topology: Path = TOPOLOGY) -> int:
    """Physical cores this process may run on: two threads of one core only wait for each other."""
    available = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({_siblings(topology, number) for number in available})


def _siblings(topology: Path, number: int) -> str:
    """The same for all threads of a core; each for itself where the system does not tell."""
    try:
        return (topology / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(number)
