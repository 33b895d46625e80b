"""A TCP proxy in front of an engine's socket that cuts a connection after a number of bytes."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

CHUNK_BYTES = 4096


class CuttingProxy:
    """Passes everything on until `cut_after` says otherwise. Use as a context manager."""

    def __init__(self, socket: str) -> None:
        self.target = ""
        self.num_cuts = 0
        self._socket = socket
        self._left: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_after(self, num_bytes: int) -> None:
        """Pass this many more bytes of the engine's, then end that connection; others live."""
        self._left = num_bytes

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_engine, to_engine = await asyncio.open_unix_connection(self._socket)
        except OSError:  # the engine is gone: so is this connection
            writer.transport.abort()
            return
        upstream = asyncio.create_task(_pass(reader, to_engine))
        try:
            await self._pass_until_cut(from_engine, writer)
        finally:
            upstream.cancel()
            for each in (writer, to_engine):
                each.transport.abort()

    async def _pass_until_cut(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                left = self._left
                if left is not None:
                    self._left = left - len(data)
                writer.write(data if left is None else data[:left])
                await writer.drain()
                if left is not None and left <= len(data):
                    self._left = None
                    self.num_cuts += 1
                    # What was passed shall arrive before the end does.
                    writer.close()
                    await writer.wait_closed()
                    return


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
