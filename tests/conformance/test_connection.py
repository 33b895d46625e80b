from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from conformance.connection import Connection


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
