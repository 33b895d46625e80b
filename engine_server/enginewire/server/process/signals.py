"""The signals that end a server: items of a queue, and while it cleans up the end of the process at once.

Knows nothing about the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

# Who ends a group of processes often signals each of them too: that is one wish, not two.
SAME_WISH_SECONDS: Final = 0.5
NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def ending_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """SIGTERM and SIGINT as items of a queue."""
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in NUMBERS:
        loop.add_signal_handler(number, arrived.put_nowait, number)
    try:
        yield arrived
    finally:
        for number in NUMBERS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Inside this a signal ends the process with 128 + its number, even when the event loop hears nothing."""
    began = time.monotonic()

    def end(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - began > SAME_WISH_SECONDS:
            os._exit(128 + number)

    before = {number: signal.signal(number, end) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
