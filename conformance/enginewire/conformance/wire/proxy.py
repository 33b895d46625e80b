"""A proxy in front of the target that can pause, cut, swallow or falsify. Bytes only, no HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self

CHUNK = 64 * 1024


class Proxy:
    """Forwards connections to a target and breaks them on demand. Open it with `Proxy.open`."""

    def __init__(self, upstream: str) -> None:
        self.target = ""
        self.bytes_to_client = 0
        self._upstream = upstream
        self._open = asyncio.Event()
        self._open.set()
        self._is_black_hole = False
        self._renamed = (b"", b"")
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, upstream: str, *, at: str = "") -> Self:
        """Listen on a free TCP port of loopback, or on the Unix socket `at`, such as `unix:/path`."""
        proxy = cls(upstream)
        if at:
            proxy._server = await asyncio.start_unix_server(proxy._accept, at.removeprefix("unix:"))
            proxy.target = at
        else:
            proxy._server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
            proxy.target = f"127.0.0.1:{proxy._server.sockets[0].getsockname()[1]}"
        return proxy

    def pause(self) -> None:
        """Stop reading in both directions: the kernel's buffers fill up, then the sender waits."""
        self._open.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._open.set()

    def black_hole(self) -> None:
        """Read and forget everything from now on, as a network that lost its route."""
        self._is_black_hole = True

    def rename(self, name: bytes, other: bytes) -> None:
        """From now on the server is told `other` wherever the client says `name`, which is as long."""
        self._renamed = name, other

    def reset(self) -> None:
        """Cut every connection with a TCP reset, as the kernel does for a client that was killed."""
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        self.resume()
        if self._server:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await self._connect()
        self._writers += [writer, back_writer]
        for source, sink, to_client in ((reader, back_writer, False), (back_reader, writer, True)):
            task = asyncio.ensure_future(self._forward(source, sink, to_client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._upstream.startswith("unix:"):
            return await asyncio.open_unix_connection(self._upstream.removeprefix("unix:").removeprefix("//"))
        host, _, port = self._upstream.removeprefix("dns:///").rpartition(":")
        return await asyncio.open_connection(host.strip("[]"), int(port))

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, to_client: bool
    ) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await source.read(CHUNK):
                await self._open.wait()
                if self._is_black_hole:
                    continue
                self.bytes_to_client += len(data) if to_client else 0
                sink.write(data if to_client else data.replace(*self._renamed))
                await sink.drain()
        if not self._is_black_hole:
            sink.close()
