"""Waits for an engine in another process that is not there yet, or still loads its model.

Knows nothing about how the engine is reached.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from enginewire.server.engines.remote.watch import NoUpstream

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


class NotYet(Exception):
    """Nobody serves there so far; the message says what came instead of an answer."""


async def first_answer(
    ask: Callable[[], Awaitable[Answer]], *, whose: str, target: str, patience: float
) -> Answer:
    """What `ask` returns, as soon as it no longer raises NotYet.

    `whose`: what people call whoever is to answer at `target`. Raises NoUpstream when nobody has answered
    after `patience` seconds.
    """
    deadline, pause, said = time.monotonic() + patience, FIRST_PAUSE, False
    while True:
        try:
            return await ask()
        except NotYet as error:
            if time.monotonic() + pause > deadline:
                what = f"no {whose} has answered within {patience:g} s, the last time"
                raise NoUpstream(f"{what} {error}") from error
        if not said:
            log.info("waiting for the %s at %s", whose, target)
            said = True
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
