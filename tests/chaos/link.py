"""A connection that can go wrong: a proxy between a program and an engine. Bytes only, no HTTP/2, no TLS."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHUNK_BYTES = 4096
RESET = struct.pack("ii", 1, 0)
Change = Callable[[bytes], bytes]


def dropped(data: bytes) -> bytes:
    """Nothing of it arrives."""
    return b""


def doubled(data: bytes) -> bytes:
    """All of it arrives twice."""
    return data + data


def corrupted(dice: random.Random) -> Change:
    """One byte of it arrives as another one."""

    def change(data: bytes) -> bytes:
        place = dice.randrange(len(data))
        return data[:place] + bytes([data[place] ^ dice.randrange(1, 256)]) + data[place + 1 :]

    return change


class Link:
    """Passes everything on, to `unix:PATH` or `HOST:PORT`, until a fault is asked for. A context manager.

    Callers connect to `target`, a free port of loopback or the Unix socket `at`. New connections are whole.
    """

    def __init__(self, upstream: str = "", at: str = "") -> None:
        self.upstream = upstream
        self.target = at
        self.num_cuts = 0
        self.delay_seconds = 0.0
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._left: int | None = None
        self._resets = False
        self._changes: list[Change] = []
        self._callers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if self.target:
            self._server = await asyncio.start_unix_server(self._accept, self.target.removeprefix("unix:"))
        else:
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

    def stall(self) -> None:
        """Pass nothing on in either direction until `heal`; connections stay."""
        self._goes_on.clear()

    def heal(self) -> None:
        """No delay, no stall, nothing that is still to be cut or changed."""
        self.delay_seconds, self._left = 0.0, None
        self._changes.clear()
        self._goes_on.set()

    def cut_after(self, num_bytes: int, *, by_reset: bool = False) -> None:
        """Pass this many more bytes of the engine's, then end that connection; others live."""
        self._left = num_bytes
        self._resets = by_reset

    def change_next(self, change: Change) -> None:
        """What the engine sends next arrives as `change` makes it."""
        self._changes.append(change)

    @property
    def has_changes(self) -> bool:
        """Something is still to be changed."""
        return bool(self._changes)

    def half_close(self) -> None:
        """Callers are told that no more comes; what they send is still passed on."""
        for writer in self._callers:
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()

    def reset(self) -> None:
        """End every connection without a goodbye."""
        for writer in self._callers:
            _reset(writer)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection to the engine. Raises OSError."""
        if self.upstream.startswith("unix:"):
            return await asyncio.open_unix_connection(self.upstream.removeprefix("unix:"))
        host, _, port = self.upstream.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_engine, to_engine = await self.connect()
        except OSError:  # the engine is gone: so is this connection
            writer.transport.abort()
            return
        self._callers.add(writer)
        upstream = asyncio.create_task(self._pass_up(reader, to_engine))
        try:
            await self._pass_down(from_engine, writer)
        finally:
            upstream.cancel()
            self._callers.discard(writer)
            for each in (writer, to_engine):
                each.transport.abort()

    async def _pass_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._goes_on.wait()
                writer.write(data)
                await writer.drain()
            # The caller has said its goodbye, so the engine hears it too.
            writer.write_eof()

    async def _pass_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # a transport whose end is written refuses more
            while data := await reader.read(CHUNK_BYTES):
                await asyncio.sleep(self.delay_seconds)
                await self._goes_on.wait()
                while self._changes and data:
                    data = self._changes.pop(0)(data)
                if await self._is_cut(data, writer):
                    return

    async def _is_cut(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        left = self._left
        if left is None or left > len(data):
            self._left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()
            return False
        self._left = None
        self.num_cuts += 1
        writer.write(data[:left])
        if self._resets:
            _reset(writer)
        else:
            # What was passed shall arrive before the end does.
            writer.close()
            await writer.wait_closed()
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """End it as the kernel ends those of a program that was killed: RST where there is one."""
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.family == socket.AF_INET:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
