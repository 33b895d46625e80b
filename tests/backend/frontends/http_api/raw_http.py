"""A caller on a bare socket, who may say anything at any pace, or nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from tests.patience import PATIENCE_SECONDS

GET = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with a length."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """The error object."""
        error: dict[str, object] = orjson.loads(self.body)["error"]
        return error


@dataclass(frozen=True, slots=True)
class Caller:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        """Send it, unless nobody takes it any more."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return

    async def answer(self) -> Answered:
        """The next answer."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in pairs}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answered(int(head[0].split(" ")[1]), headers, body)

    async def everything(self) -> bytes:
        """All that still comes, until the server has ended the connection."""
        received = b""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while piece := await self.reader.read(1 << 16):
                    received += piece
        except ConnectionError:
            pass
        return received

    async def is_cut_off(self) -> bool:
        """True once the server has ended the connection."""
        await self.everything()
        return True


@asynccontextmanager
async def caller(
    address: str, *, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Caller]:
    """A connection to a base URL. `receive_buffer` in bytes: what the kernel takes unread."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    reader, writer = await asyncio.open_connection(
        sock=connection, limit=1024, ssl=tls, server_hostname="localhost" if tls else None
    )
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


async def still_serves(address: str) -> bool:
    """Somebody new is answered."""
    async with caller(address) as other:
        await other.say(GET)
        return (await other.answer()).status == 200


def posting(body: bytes, path: str = "/v1/completions", length: int | None = None) -> bytes:
    """A request, or its beginning when `length` says that more will come."""
    return head_of(length=len(body) if length is None else length, path=path) + body


def head_of(*, length: int, path: str = "/v1/completions") -> bytes:
    """The head of a POST with JSON."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()
