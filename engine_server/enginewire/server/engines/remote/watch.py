"""Is the engine still there, and still the same one? Looks every second, and when a call gives reason to.

Knows nothing about requests, and nothing about how the engine is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 1.0
SHORTEST_PAUSE: Final = 0.05
"""Between two looks, however often somebody asks for one."""
SECOND_LOOK_SECONDS: Final = 2.0
VERDICT_SECONDS: Final = 2 * SECOND_LOOK_SECONDS
USUAL_SECONDS: Final = 1.0
"""An answer that takes longer counts as a stall."""


class NoUpstream(Exception):
    """No engine can be served from there; the message names the option and says why."""


class Lost(Exception):
    """Nothing answers, or the connection is gone; the message says how, on one line."""


class Replaced(Exception):
    """Something else answers: what this server has said of the engine holds no more."""


class Watch:
    """One engine, under the eyes of this server."""

    def __init__(
        self, target: str, look: Callable[[float | None], Awaitable[None]], died: Callable[[], None]
    ) -> None:
        """`look` asks within so many seconds, and raises Lost or Replaced.

        `died` is called once, on the event loop, when the engine is gone.
        """
        self.death = ""
        self._target = target
        self._look = look
        self._died = died
        self._asked_at: float | None = None
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []

    def look(self) -> None:
        """Something has happened that is worth a look."""
        self._wanted.set()

    async def looked(self) -> None:
        """Look, and wait until it is known whether the engine is gone; within some seconds."""
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(seen)
        self._wanted.set()
        if not self.death:
            await asyncio.wait([seen], timeout=VERDICT_SECONDS)

    def stalled_for(self) -> float:
        """Seconds for which the engine owes an answer; infinite when it is gone."""
        if self.death:
            return math.inf
        return 0.0 if self._asked_at is None else max(time.monotonic() - self._asked_at - USUAL_SECONDS, 0.0)

    async def run(self, and_then: Callable[[], bool]) -> None:
        """Look for as long as the engine lives. `and_then` is called after it: is the next look due soon?"""
        pause = EVERY_SECONDS
        while not self.death:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            self._wanted.clear()
            waiting, self._waiting = self._waiting, []
            self._asked_at = time.monotonic()
            await self._look_twice()
            self._asked_at = None
            for seen in waiting:
                seen.cancel()
            await asyncio.sleep(SHORTEST_PAUSE)
            pause = SHORTEST_PAUSE if and_then() else EVERY_SECONDS

    async def _look_twice(self) -> None:
        """A connection may be lost and the engine still be there, the same as before."""
        try:
            try:
                await self._look(None)
            except Lost:
                await self._look(SECOND_LOOK_SECONDS)
        except Lost as error:
            self._die(f"the engine at {self._target} is gone: {error}")
        except Replaced:
            self._die(f"another engine, or another life of it, answers at {self._target}")

    def _die(self, how: str) -> None:
        if not self.death:
            self.death = how
            log.critical("%s", how)
            self._died()
