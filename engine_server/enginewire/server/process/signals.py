"""The signals that end a server, as items of a queue. Knows nothing about the server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ending_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """SIGTERM and SIGINT as items of a queue."""
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, arrived.put_nowait, number)
    try:
        yield arrived
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
