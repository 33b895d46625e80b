"""What vLLM's processes do for a server of ours: they leave its process group and end with their parent.

They also follow each grammar by its own library. vLLM loads it as a plugin (`vllm.general_plugins`) in each
of its processes. In those of a vLLM that no server of ours has started it does nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

from enginewire.vllm_engine.environment import SERVER
from enginewire.vllm_engine.libraries import follow_each_by_its_own

LOOK_SECONDS: Final = 0.5


def attend() -> None:
    """For a process below the server: a group of its own, and an end with its parent.

    A signal to the server's group, such as that of Ctrl-C, lets requests finish first. A server that was
    killed can end nobody.
    """
    server = os.environ.get(SERVER)
    if server is None or int(server) == os.getpid():
        return
    os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent", daemon=True).start()
    follow_each_by_its_own()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)  # nothing tells of it
    os.kill(os.getpid(), signal.SIGKILL)
