"""One request at the server: a stream of tokens for each of its choices, read side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping

from enginewire.openai_engine.drawn import Drawn
from enginewire.server.failures import EngineError, EngineMistake

Item = tuple[int, Drawn]


class CompletionsCall:
    """`heard_at`: when a token last came, on time.monotonic()."""

    def __init__(self, choices: Mapping[int, AsyncGenerator[Drawn, None]]) -> None:
        """The choices that are open, by their indexes. Needs a running loop."""
        self.heard_at = time.monotonic()
        self.num_tokens = 0
        self._arrived: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
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
            item = await self._arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None or item[0] not in self._finished:
                return item

    def fail(self, failure: EngineError) -> None:
        """End the call here and now: whoever reads it gets `failure`."""
        self._end_with(failure)

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

    def _end_with(self, last: EngineError | None) -> None:
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
            self._arrived.put_nowait(EngineMistake(f"the server's answer to choice {index} ended too early"))
        except Exception as error:  # noqa: BLE001  # whoever reads the call knows what it means
            self._arrived.put_nowait(error)
        finally:
            await tokens.aclose()
