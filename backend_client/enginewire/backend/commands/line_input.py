"""Lines out of a file or pipe that may be endless, never more of it in memory than a few chunks.

Holds the splitting (sans-IO) and the reading beside the event loop. Knows nothing about what lines mean.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

CHUNK_BYTES: Final = 65_536
MAX_WAITING_CHUNKS: Final = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end, counted from 1. `data` is None when it was too long."""

    number: int
    data: bytes | None


class LineSplitter:
    """Chunks in, whole lines out. Keeps at most one line, and no line above the limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._is_too_long = False
        self._number = 0

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that end in this chunk."""
        *ends, begin = chunk.split(b"\n")
        lines = []
        for end in ends:
            self._extend(end)
            lines.append(self._end_line())
        self._extend(begin)
        return lines

    def finish(self) -> list[Line]:
        """The last line, when it has no end."""
        return [self._end_line()] if self._begun or self._is_too_long else []

    def _extend(self, part: bytes) -> None:
        if len(self._begun) + len(part) > self._max_bytes:
            self._is_too_long = True
            self._begun.clear()
        elif not self._is_too_long:
            self._begun += part

    def _end_line(self) -> Line:
        self._number += 1
        line = Line(self._number, None if self._is_too_long else bytes(self._begun))
        self._begun.clear()
        self._is_too_long = False
        return line


async def read_lines(descriptor: int, max_bytes: int) -> AsyncIterator[Line]:
    """The lines of an open file, as they come. Raises OSError."""
    splitter = LineSplitter(max_bytes)
    async for chunk in read_chunks(descriptor):
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.finish():
        yield line


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What the file holds, until its end. Raises OSError.

    Reads on a daemon thread, since regular files cannot be polled and a thread of the loop's pool would
    keep the process alive until someone types a line.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    free = threading.Semaphore(MAX_WAITING_CHUNKS)

    def pump() -> None:
        chunk: bytes | OSError = b"begin"
        while isinstance(chunk, bytes) and chunk:
            free.acquire()
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except RuntimeError:
                # The loop has ended: nobody wants the rest.
                return

    threading.Thread(target=pump, name="line input", daemon=True).start()
    while chunk := await arrived.get():
        if isinstance(chunk, OSError):
            raise chunk
        free.release()
        yield chunk
