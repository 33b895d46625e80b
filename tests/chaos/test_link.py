"""Each fault of a link is the fault that it is called."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from tests.chaos.link import Link, corrupted, doubled, dropped
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def echo(at: str = "") -> AsyncIterator[tuple[Link, Streams]]:
    """A server that says what it hears, behind a link, and a caller."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Link(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", at) as link:
        if at:
            streams = await asyncio.open_unix_connection(at.removeprefix("unix:"))
        else:
            host, _, port = link.target.rpartition(":")
            streams = await asyncio.open_connection(host, int(port))
        yield link, streams
        streams[1].close()


async def say(streams: Streams, data: bytes, length: int) -> bytes:
    streams[1].write(data)
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await streams[0].readexactly(length)


async def test_bytes_pass_over_tcp_and_over_a_socket(socket_folder) -> None:
    for at in ("", f"unix:{socket_folder}/s"):
        async with echo(at) as (_, streams):
            assert await say(streams, b"hello", 5) == b"hello"


@pytest.mark.parametrize(("change", "seen"), [(dropped, b"next"), (doubled, b"hellohellonext")])
async def test_what_comes_next_is_changed_and_nothing_else(change, seen) -> None:
    async with echo() as (link, streams):
        link.change_next(change)
        streams[1].write(b"hello")
        await until_true(lambda: not link.has_changes)
        assert await say(streams, b"next", len(seen)) == seen


def test_one_byte_is_falsified() -> None:
    for seed in range(50):
        changed = corrupted(random.Random(seed))(b"hello")
        assert sum(a != b for a, b in zip(changed, b"hello", strict=True)) == 1


async def test_a_cut_comes_behind_so_many_bytes() -> None:
    async with echo() as (link, streams):
        link.cut_after(3)
        streams[1].write(b"hello")
        assert await streams[0].read() == b"hel"
        assert link.num_cuts == 1


async def test_a_reset_is_no_goodbye() -> None:
    async with echo() as (link, streams):
        assert await say(streams, b"hello", 5) == b"hello"
        link.reset()
        with pytest.raises(ConnectionResetError):
            await streams[0].read()


async def test_a_half_closed_link_still_takes_what_callers_say() -> None:
    async with echo() as (link, streams):
        assert await say(streams, b"hello", 5) == b"hello"
        link.half_close()
        assert await streams[0].read() == b""
        streams[1].write(b"more")
        await streams[1].drain()


async def test_a_stalled_link_goes_on_when_it_is_healed() -> None:
    async with echo() as (link, streams):
        link.stall()
        streams[1].write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams[0].read(1), 0.05)
        link.heal()
        assert await say(streams, b"", 5) == b"hello"
