"""Is the engine still there, and still the same one? Looks every second, and when a call gives reason to.

Another answer of GetEngineInfo is another life of the engine: what this server has said of it holds no more.
Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.server.engines.upstream.connection import Connection
from enginewire.server.engines.upstream.failure import is_lost, shown

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 1.0
SHORTEST_PAUSE: Final = 0.05
"""Between two looks, however often somebody asks for one."""
SECOND_LOOK_SECONDS: Final = 2.0
USUAL_SECONDS: Final = 1.0
"""An answer that takes longer counts as a stall."""


class Watch:
    """One engine, under the eyes of this server. `load` is the last that it reported about its KV blocks."""

    def __init__(
        self, connection: Connection, info: pb.GetEngineInfoResponse, died: Callable[[], None]
    ) -> None:
        """`died` is called once, on the event loop, when the engine is gone."""
        self.death = ""
        self.load = pb.Load()
        self._connection = connection
        self._info = info
        self._died = died
        self._asked_at: float | None = None
        self._look = asyncio.Event()

    def look(self) -> None:
        """Something has happened that is worth a look."""
        self._look.set()

    def forget(self) -> None:
        """Nobody looks any more: the blocks that the engine holds are not this server's."""
        self.load = pb.Load()

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
                    await self._look.wait()
            self._look.clear()
            self._asked_at = time.monotonic()
            await self._look_once()
            self._asked_at = None
            await asyncio.sleep(SHORTEST_PAUSE)
            pause = SHORTEST_PAUSE if and_then() else EVERY_SECONDS

    async def _look_once(self) -> None:
        try:
            self._compare(await self._connection.info())
            if self._info.config.HasField("total_kv_blocks"):
                self.load = await self._connection.load()
        except grpc.aio.AioRpcError as error:
            if is_lost(error):
                await self._look_again()
            else:
                log.warning("the engine answers with %s", shown(error))

    async def _look_again(self) -> None:
        """A connection may be lost and the engine still be there, the same as before."""
        try:
            self._compare(await self._connection.info(SECOND_LOOK_SECONDS))
        except grpc.aio.AioRpcError as error:
            self._die(f"the engine at {self._connection.target} is gone: {shown(error)}")

    def _compare(self, info: pb.GetEngineInfoResponse) -> None:
        if info != self._info:
            self._die(f"another engine, or another life of it, answers at {self._connection.target}")

    def _die(self, how: str) -> None:
        if not self.death:
            self.death = how
            log.critical("%s", how)
            self._died()
