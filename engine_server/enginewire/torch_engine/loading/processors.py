"""How many threads a product should use, and how many of its kernels are kept. Knows nothing about torch.

oneDNN makes a kernel for every number of rows that a product is ever asked for. One takes about half a MiB
and half a millisecond, and torch and oneDNN keep 1024 each: 400 MiB and more, which look like a leak while
prompts of new lengths come in.
"""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN's own and torch's."""
KERNELS = "256"
"""Four or five for each number of rows: about 50 numbers, more than the sizes of running decodes."""


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


def limit_kernel_caches() -> None:
    """Set the limits, unless the environment has its own. They are read at the first product of a process."""
    for variable in VARIABLES:
        os.environ.setdefault(variable, KERNELS)
