from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection


@pytest.mark.parametrize("unix", [False, True])
async def test_an_address_accepts_while_somebody_listens(unix: bool, tmp_path: Path) -> None:
    def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    path = tmp_path / "s.sock"
    if unix:
        server, target = await asyncio.start_unix_server(ignore, path), f"unix:{path}"
    else:
        server = await asyncio.start_server(ignore, "127.0.0.1", 0)
        target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert await Connection(target=target).accepts()
    server.close()
    await server.wait_closed()
    assert not await Connection(target=target).accepts()


async def test_a_socket_is_called_localhost(tmp_path: Path) -> None:
    """Rust's h2 refuses the name that gRPC would make of the path."""
    seen = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame, or gRPC sends no headers
        while b":path" not in seen:
            seen.extend(await reader.read(4096))
        writer.close()

    server = await asyncio.start_unix_server(listen, tmp_path / "s.sock")
    async with Connection(target=f"unix:{tmp_path / 's.sock'}").channel() as channel:
        exchange = await Client(channel).ask("DiscoveryService.GetLoad", pb.GetLoadRequest())
    assert not exchange.is_ok
    assert b"localhost" in seen
    server.close()
    await server.wait_closed()
