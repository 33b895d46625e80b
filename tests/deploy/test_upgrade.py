"""An upgrade with real processes: engines leave as a kubelet ends them, and callers see nothing."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.end_to_end.chaos import engines

NUM_REQUESTS = 320


@asynccontextmanager
async def backend(folder: Path, targets: list[str], *more: str) -> AsyncIterator[str]:
    """Where a backend process serves HTTP."""
    arguments = [
        *(f"--target={each}" for each in targets),
        f"--uds={folder}/backend.sock",
        "--http-port=0",
        *more,
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "enginewire.backend", "serve", *arguments, *more, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while not (found := re.search(r"http://\S+", (await process.stderr.readline()).decode())):
            assert process.returncode is None
        yield found[0]
    finally:
        process.terminate()
        assert await process.wait() == 0


async def load(address: str, num_requests: int = NUM_REQUESTS) -> dict[str, int]:
    """What `enginewire bench` says of 16 callers at a time."""
    arguments = f"--api chat --concurrency 16 --num-prompts {num_requests} --input-len 20 --output-len 100"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "enginewire.backend.bench", address, *arguments.split(), "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    found: dict[str, int] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.parametrize("drain_timeout", ["30", "0.1"], ids=["patient", "hasty"])
async def test_an_upgrade_of_all_engines_costs_no_caller_a_request(folder: Path, drain_timeout: str) -> None:
    arguments = ("--engine", "mocker", "--mocker-itl-ms", "4", "--shutdown-timeout", drain_timeout)
    async with (
        engines(folder, 2, arguments) as slots,
        backend(folder, [slot.target for slot in slots]) as address,
    ):
        loading = asyncio.create_task(load(address))
        await asyncio.sleep(2)
        for slot in slots:
            assert await slot.end(signal.SIGTERM) == 0
            await slot.start()
            await asyncio.sleep(1.5)
        # The callers outlast the upgrade.
        assert not loading.done()
        seen = await loading
    assert (seen["completed"], seen["failed"]) == (NUM_REQUESTS, 0)
    assert seen["total_output_tokens"] == NUM_REQUESTS * 100
