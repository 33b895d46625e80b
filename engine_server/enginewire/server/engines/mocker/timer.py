"""When the mocker's next step is due. Knows nothing about requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

STALL_GRACE_SECONDS = 1.0
"""A step that begins later than this after its time has stalled: the event loop itself may be busy."""


class StepTimer:
    """Calls `step` on the event loop, once per `call_in`. It counts as late until `stop`, however it ends."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._handle: asyncio.Handle | None = None
        self._due = math.inf

    def call_in(self, delay: float) -> None:
        """Step after `delay` seconds; a step that is already due earlier stays."""
        due = time.monotonic() + delay
        if self._due <= due:
            return
        self.stop()
        self._due = due
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(delay, self._step) if delay > 0 else loop.call_soon(self._step)

    def stop(self) -> None:
        """No step is due any more."""
        if self._handle:
            self._handle.cancel()
        self._handle, self._due = None, math.inf

    def stalled_for(self) -> float:
        """Seconds the next step is late, beyond a grace for a busy event loop."""
        return max(time.monotonic() - self._due - STALL_GRACE_SECONDS, 0.0)
