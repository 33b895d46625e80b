"""One request at the server: a stream of tokens for each of its choices, read side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from enginewire.openai_engine.drawn import Drawn
from enginewire.server.failures import EngineError, EngineMistake

Item = tuple[int, Drawn]
NOBODY: Final = -1
"""The index of what is no choice's."""


class CompletionsCall:
    """`heard_at`: when a token last came, on time.monotonic()."""

    def __init__(self, choices: Mapping[int, AsyncGenerator[Drawn, None]]) -> None:
        """The choices that are open, by their indexes. Needs a running loop."""
        self.heard_at = time.monotonic()
        self.num_tokens = 0
        self._arrived: asyncio.Queue[tuple[int, Drawn | Exception] | None] = asyncio.Queue()
        self._finished: set[int] = set()
        self._reading = {
            index: asyncio.create_task(self._read(index, tokens), name=f"choice {index}")
            for index, tokens in choices.items()
        }

    async def next(self) -> Item | None:
        """The next token of any choice; None: the request was cancelled.

        Raises what the server's calls raise, and the failure that `fail` was given.
        """
        while True:
            arrived = await self._arrived.get()
            if arrived is None:
                return None
            index, news = arrived
            if index in self._finished:
                continue
            if isinstance(news, Exception):
                raise news
            return index, news

    def fail(self, failure: EngineError) -> None:
        """End the call here and now: whoever reads it gets `failure`."""
        self._end_with((NOBODY, failure))

    def cancel(self) -> None:
        """End the call here and now: whoever reads it gets None."""
        self._end_with(None)

    def finish(self, index: int) -> None:
        """A choice has ended: what the server still makes of it is not wanted."""
        self._finished.add(index)
        self._reading[index].cancel()

    async def leave(self) -> None:
        """Nobody reads on: close every stream, which cancels it at the server."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    def _end_with(self, last: tuple[int, Exception] | None) -> None:
        for task in self._reading.values():
            task.cancel()
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self._arrived.put_nowait(last)

    async def _read(self, index: int, tokens: AsyncGenerator[Drawn, None]) -> None:
        try:
            async for drawn in tokens:
                self.heard_at = time.monotonic()
                self.num_tokens += 1
                self._arrived.put_nowait((index, drawn))
            # Unless the choice has ended with the token before, which whoever reads decides.
            early = EngineMistake(f"the server's answer to choice {index} ended too early")
            self._arrived.put_nowait((index, early))
        except Exception as error:  # noqa: BLE001  # whoever reads the call knows what it means
            self._arrived.put_nowait((index, error))
        finally:
            await tokens.aclose()
