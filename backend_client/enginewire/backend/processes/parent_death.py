"""`python -m … parent_death PARENT MODULE [ARGS]`: become MODULE, and die when PARENT does.

Runs in the child, before the program it becomes, because code between fork and exec in a process with
gRPC's threads is unsafe. Knows nothing about what it runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process, also after exec, when the thread that started it ends."""
    # Elsewhere than on Linux an abandoned program ends only when it is told to.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"process {parent} is gone")


def main() -> None:
    """Replace this process by `python -m MODULE ARGS`."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606  # our own interpreter


if __name__ == "__main__":
    main()
