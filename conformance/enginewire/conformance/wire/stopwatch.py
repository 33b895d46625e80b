"""Time as the target had it: without what this machine kept the kit itself waiting.

On a busy machine a call is late because nobody ran, which says nothing about the target. Knows no check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic
from types import TracebackType
from typing import Final, TypeVar

from enginewire.conformance.wire.tasks import stop

T = TypeVar("T")

TICK_SECONDS: Final = 0.01


class Stopwatch:
    """Runs inside `async with`; `seconds` may be read at any time."""

    def __init__(self) -> None:
        self.held_up = 0.0
        self.due = 0.0
        """When this process will next look at the clock, unless it is kept from it."""
        self._started = self._ended = 0.0

    async def __aenter__(self) -> Stopwatch:
        self._started = monotonic()
        self.due = self._started + TICK_SECONDS
        self._ticking = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = monotonic()
        await stop([self._ticking])

    @property
    def seconds(self) -> float:
        """What passed, less the time for which this process was due to run and did not."""
        now = self._ended or monotonic()
        return max(now - self._started - self.held_up - max(now - self.due, 0.0), 0.0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = monotonic()
            self.held_up += max(now - self.due, 0.0)
            self.due = now + TICK_SECONDS


async def within(seconds: float, answer: Awaitable[T]) -> T:
    """What it returns; TimeoutError as soon as it takes longer than that, by the stopwatch."""
    waiting = asyncio.ensure_future(answer)
    try:
        async with Stopwatch() as watch:
            while not waiting.done() and watch.seconds <= seconds:
                await asyncio.wait([waiting], timeout=TICK_SECONDS)
        if watch.seconds > seconds:
            raise TimeoutError
        return waiting.result()
    finally:
        await stop([waiting])
