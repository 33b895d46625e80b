"""The engine server, and how much lives in it: for benchmarks/endurance/soak.py, which starts it.

Upon SIGUSR1 it writes a line of JSON to the file that COUNTS_VARIABLE names.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

COUNTS_VARIABLE = "SOAK_COUNTS"
MIB = 2**20
NUMBERS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in NUMBERS]


def counts() -> dict[str, object]:
    """Live blocks of the interpreter's allocator, live objects by type, and MiB of malloc in use."""
    gc.collect()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    info = libc.mallinfo2()
    return {
        "blocks": sys.getallocatedblocks(),
        "objects": dict(types),
        "malloc_mib": (info.uordblks + info.hblkhd) / MIB,
        "malloc_free_mib": info.fordblks / MIB,
    }


def _write(number: int, frame: FrameType | None) -> None:
    path = Path(os.environ[COUNTS_VARIABLE])
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(counts()))
    unfinished.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _write)
    runpy.run_module("enginewire.server", run_name="__main__", alter_sys=True)
