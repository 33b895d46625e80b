"""Engine servers and backends as processes, and what is asked of them. Knows nothing about cables."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from enginewire import v1 as pb
from tests.chaos.callers import channel

PATIENCE_SECONDS: Final = 60.0
MOCKER: Final = ("--engine", "mocker", "--mocker-itl-ms", "20", "--max-model-len", "200000")
OPEN: Final = ("--allow-insecure", "--log-level", "error")


async def load_of(target: str) -> pb.Load:
    """GetLoad, once the engine there answers."""
    async with channel(target) as to:
        stub = pb.DiscoveryServiceStub(to)
        return (await stub.GetLoad(pb.GetLoadRequest(), wait_for_ready=True, timeout=PATIENCE_SECONDS)).load


async def is_free(target: str) -> bool:
    """Nothing runs there."""
    return not (await load_of(target)).running


async def until(is_due: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_SECONDS) -> bool:
    """True once it is; False after so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await is_due():  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.05)
            return True
    return False


@asynccontextmanager
async def process(*argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m ARGV`, killed at the end."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *argv, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        await running.wait()


@asynccontextmanager
async def backend(folder: Path, *options: str) -> AsyncIterator[str]:
    """Where a backend process serves gRPC, once it does."""
    at = folder / f"b{time.monotonic_ns()}"
    argv = ("enginewire.backend", "serve", "--uds", str(at), "--connect-timeout", "600", *options)
    async with process(*argv, *OPEN), channel(f"unix:{at}") as to:
        await asyncio.wait_for(to.channel_ready(), PATIENCE_SECONDS)
        yield f"unix:{at}"
