"""Time as the target had it: without what this machine kept the kit itself waiting.

On a busy machine a call is late because nobody ran, which says nothing about the target. Knows no check.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Final

from conformance.tasks import stop

TICK_SECONDS: Final = 0.01


class Stopwatch:
    """Runs inside `async with`; `seconds` may be read at any time."""

    def __init__(self) -> None:
        self.held_up = 0.0
        self._started = self._ended = 0.0

    async def __aenter__(self) -> Stopwatch:
        self._started = monotonic()
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
        return max((self._ended or monotonic()) - self._started - self.held_up, 0.0)

    async def _tick(self) -> None:
        while True:
            due = monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.held_up += max(monotonic() - due, 0.0)
