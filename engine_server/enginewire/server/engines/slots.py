"""The slots of an engine for sequences that run at once: first come, first served.

Lives on one event loop. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """As many as `num_slots`; None: as many as come."""

    def __init__(self) -> None:
        self.num_slots: int | None = None
        self.num_running = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def num_waiting(self) -> int:
        """Those that have no slot yet."""
        return len(self._waiting)

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Wait for so many slots and hold them. More than there are is granted once nobody else runs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = turn, count
        self._waiting.append(entry)
        self._grant()
        try:
            await turn
            yield
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            else:
                self.num_running -= count
            self._grant()

    def refuse_waiting(self, refusal: Callable[[], Exception]) -> None:
        """Raise it for everybody who has no slot yet."""
        for turn, _ in self._waiting:
            if not turn.done():
                turn.set_exception(refusal())

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, count = self._waiting.popleft()
            self.num_running += count
            if not turn.done():  # else it is being cancelled or refused, and gives its slots back
                turn.set_result(None)

    def _fits(self, count: int) -> bool:
        return self.num_slots is None or not self.num_running or self.num_running + count <= self.num_slots
