"""How long an engine's code holds the event loop between two `await`s, and a warning when that is long.

Knows nothing about requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Held = Callable[[float], None]

log = logging.getLogger(__name__)

# More than a busy machine keeps a process waiting, and less than callers wait without wondering.
MAX_HELD_SECONDS = 0.25


class HeldLoop:
    """Warns of code that holds the loop: once, for the next warnings would say the same."""

    def __init__(self) -> None:
        self._is_told = False

    def watched(self, items: AsyncIterable[T]) -> AsyncIterator[T]:
        """The same items, each of them timed."""
        return _Watched(aiter(items), self._held)

    def _held(self, seconds: float) -> None:
        if seconds < MAX_HELD_SECONDS or self._is_told:
            return
        self._is_told = True
        log.warning(
            "generate held the event loop for %.2f s, in which nobody was answered and nobody could abort: "
            "give such work to a thread, as `await asyncio.to_thread(...)` does",
            seconds,
        )


class _Watched(AsyncIterator[T]):
    """Not a generator: closing what it iterates over is the business of whoever has it."""

    def __init__(self, items: AsyncIterator[T], held: Held) -> None:
        self._items = items
        self._held = held

    def __anext__(self) -> Awaitable[T]:
        return _Timed(self._items.__anext__(), self._held)


class _Timed(Generator[object, object, T], Awaitable[T]):
    """Waits for something, and calls `held` with the seconds that each piece of it took."""

    def __init__(self, waited_for: Awaitable[T], held: Held) -> None:
        self._pieces = waited_for.__await__()
        self._held = held

    def __await__(self) -> Generator[object, object, T]:
        return self

    def send(self, value: object) -> object:
        began = time.monotonic()
        try:
            return self._pieces.send(value)
        finally:
            self._held(time.monotonic() - began)

    def throw(self, *error: Any) -> object:
        return self._pieces.throw(*error)
