"""A real engine process that dies or freezes while it answers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from tests.backend.asking import Heard, ask
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

TEXT = "abcdefgh"


@contextlib.asynccontextmanager
async def engine_process(socket: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "enginewire.server", "--engine", "mocker", "--mocker-itl-ms", "5",
        "--uds", str(socket), "--log-level", "error",
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def endless() -> pb.PreprocessedRequest:
    request = ask(TEXT.encode(), 4000)
    request.stop_conditions.ignore_eos = True
    return request


async def hear_until_the_end(backend: Backend, heard: Heard) -> None:
    """Fill `heard`."""
    async for item in backend.generate(endless()):
        heard.items.append(item)


async def break_while_talking(
    process: asyncio.subprocess.Process, backend: Backend, number: signal.Signals
) -> list[Heard]:
    """What two requests heard of an engine that got a signal."""
    all_heard = [Heard(), Heard()]
    tasks = [asyncio.create_task(hear_until_the_end(backend, heard)) for heard in all_heard]
    await until_true(lambda: all(len(heard.items) > 5 for heard in all_heard))
    process.send_signal(number)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*tasks)
    return all_heard


def check_lost(heard: Heard, *, is_by_keepalive: bool) -> None:
    """One retryable error behind an exact prefix, and in gRPC's words how it was noticed."""
    assert ("ping timeout" in heard.failure.message) is is_by_keepalive
    assert heard.failure.code == 14
    assert heard.failure.retryable
    assert heard.finishes() == {}
    assert len(heard.items) == len(heard.outputs) + 1
    assert heard.text()
    assert (TEXT * 600).startswith(heard.text())


@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
async def test_a_killed_engine_is_one_error_and_its_successor_is_used(socket_folder, vocabulary, multiplexed):
    socket = socket_folder / "engine.sock"
    async with EngineClient(f"unix:{socket}", multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        async with engine_process(socket) as process:
            first = await client.wait_ready(20)
            all_heard = await break_while_talking(process, backend, signal.SIGKILL)
        for heard in all_heard:
            check_lost(heard, is_by_keepalive=False)
        async with engine_process(socket):
            second = await client.wait_ready(20)
            outputs = [item async for item in backend.generate(ask(b"again"))]
            assert Heard(outputs).text() == "again"
    assert first.engine_lifetime_id != second.engine_lifetime_id


async def test_a_frozen_engine_is_noticed_by_the_keepalive(socket_folder, vocabulary):
    socket = socket_folder / "engine.sock"
    async with EngineClient(f"unix:{socket}") as client, engine_process(socket) as process:
        await client.wait_ready(20)
        all_heard = await break_while_talking(process, Backend(client, vocabulary), signal.SIGSTOP)
        for heard in all_heard:
            check_lost(heard, is_by_keepalive=True)
