"""SIGTERM and Ctrl-C of one command: the first asks it to end, the second ends it at once.

What does not end in its time is treated as if one more signal had come, and at last left where it is. All
this works while the event loop is stuck, as in a write to a pipe that nobody reads. Knows nothing about
commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
EXIT_SIGNAL: Final = 128
# What the end of a command may take, a launched engine's included.
END_SECONDS: Final = 20.0
# What it may take from the second signal on: to let go, and then to kill and tidy up.
HASTE_SECONDS: Final = 1.0


class StopSignals:
    """Use `installed` around the event loop of one command."""

    def __init__(self, seconds: float = END_SECONDS) -> None:
        """`seconds` is what the command may take from the first signal to its end."""
        self._seconds = seconds
        self._received = signal.SIGTERM
        self._num_steps = 0
        self._first = asyncio.Event()
        self._is_first_awaited = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[int] | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Signals of this process end `run` inside the context."""
        # Not the loop's own handlers: those run only when the loop does.
        before = {number: signal.signal(number, self._receive) for number in (*STOP_SIGNALS, signal.SIGALRM)}
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                # Behind an end by a signal there is nothing more to end, and Ctrl-C would be a traceback.
                signal.signal(number, signal.SIG_DFL if self._num_steps else handler)

    async def run(self, task: asyncio.Task[int]) -> int:
        """The exit code of the command, or 128 + the number of the signal that cancelled it."""
        self._loop, self._task = asyncio.get_running_loop(), task
        try:
            if self._num_steps:
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if not self._num_steps:
                raise
            return EXIT_SIGNAL + self._received
        finally:
            self._loop = None

    async def first(self) -> None:
        """Until the first signal, which then does not cancel the command."""
        self._is_first_awaited = True
        await self._first.wait()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Whatever came, and be it the end of the time: one step further."""
        if number != signal.SIGALRM:
            self._received = signal.Signals(number)
        self._num_steps += 1
        if self._num_steps > 3:
            os._exit(EXIT_SIGNAL + self._received)
        signal.setitimer(signal.ITIMER_REAL, self._seconds if self._num_steps == 1 else HASTE_SECONDS)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self._num_steps == 1 and self._is_first_awaited:
            self._first.set()
        elif self._task is not None:
            self._task.cancel()
