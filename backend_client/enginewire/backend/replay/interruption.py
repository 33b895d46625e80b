"""One task waits, another ends the waiting. Knows nothing about what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from enginewire.backend.engines.failure import RequestFailed

T = TypeVar("T")


class Interruption:
    """A failure that somebody else may cause, once. Use on one event loop."""

    __slots__ = ("_failure", "_waiting")

    def __init__(self) -> None:
        self._failure: RequestFailed | None = None
        self._waiting: asyncio.Timeout | None = None

    @property
    def is_caused(self) -> bool:
        """It happened."""
        return self._failure is not None

    def cause(self, failure: RequestFailed) -> None:
        """Let what is waited for now, and all that follows, fail."""
        self._failure = failure
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def unless_caused(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Raises RequestFailed as soon as it is caused."""
        if self._failure is not None:
            raise self._failure
        try:
            # A timeout without a time: it ends the waiting without ending the task.
            async with asyncio.timeout(None) as self._waiting:
                return await work()
        except TimeoutError as error:
            assert self._failure is not None, "nothing else sets a time"
            raise self._failure from error
        finally:
            self._waiting = None
