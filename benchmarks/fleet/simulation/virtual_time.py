"""Time that jumps to the next thing that is due: a minute of waiting takes no time at all.

`install` is to be called before anything is imported that remembers `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """Seconds since the beginning."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """As time.monotonic, which asyncio asks as well."""
        return self.now


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer it moves the clock there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See selectors. Raises RuntimeError when nothing would ever happen any more."""
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everybody waits and no timer runs")
        if not ready and timeout:
            self._clock.now += timeout
        return ready


def install() -> Clock:
    """From now on the time of this process is that of the clock."""
    clock = Clock()
    time.monotonic = clock
    return clock


def run(clock: Clock, program: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(JumpingSelector(clock))) as runner:
        return runner.run(program)
