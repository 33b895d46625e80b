"""A real engine process that dies or freezes while it answers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.client import EngineClient
from tests.backend.asking import Heard, ask
from tests.server.serving import until_true

TEXT = "abcdefgh"
# The keepalive's two bounds, and the time to notice.
FREEZE_NOTICED_SECONDS = 6.0


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


async def hear_until_the_end(backend: Backend, heard: Heard) -> float:
    """Fill `heard`; returns the time of its end."""
    async for item in backend.generate(endless()):
        heard.items.append(item)
    return time.monotonic()


async def break_while_talking(
    process: asyncio.subprocess.Process, backend: Backend, number: signal.Signals
) -> tuple[list[Heard], float]:
    """What two requests heard of an engine that got a signal, and how long they took to notice."""
    all_heard = [Heard(), Heard()]
    tasks = [asyncio.create_task(hear_until_the_end(backend, heard)) for heard in all_heard]
    await until_true(lambda: all(len(heard.items) > 5 for heard in all_heard))
    process.send_signal(number)
    began = time.monotonic()
    async with asyncio.timeout(20):
        return all_heard, max(await asyncio.gather(*tasks)) - began


def check_lost(heard: Heard) -> None:
    """One retryable error behind an exact prefix."""
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
            all_heard, seconds = await break_while_talking(process, backend, signal.SIGKILL)
        for heard in all_heard:
            check_lost(heard)
        assert seconds < 0.5
        async with engine_process(socket):
            second = await client.wait_ready(20)
            outputs = [item async for item in backend.generate(ask(b"again"))]
            assert Heard(outputs).text() == "again"
    assert first.engine_lifetime_id != second.engine_lifetime_id


async def test_a_frozen_engine_is_noticed_by_the_keepalive(socket_folder, vocabulary):
    socket = socket_folder / "engine.sock"
    async with EngineClient(f"unix:{socket}") as client, engine_process(socket) as process:
        await client.wait_ready(20)
        all_heard, seconds = await break_while_talking(process, Backend(client, vocabulary), signal.SIGSTOP)
        for heard in all_heard:
            check_lost(heard)
    assert seconds < FREEZE_NOTICED_SECONDS
