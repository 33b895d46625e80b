"""An upgrade with real processes: engines leave as a kubelet ends them, and callers see nothing."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from enginewire import v1 as pb
from tests.backend.our_processes import PATIENCE_SECONDS, load_of
from tests.end_to_end.chaos import EngineSlot, engines

NUM_CALLERS, NUM_TOKENS = 16, 20
MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "20")


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


@asynccontextmanager
async def callers(address: str) -> AsyncIterator[Counter[str]]:
    """How many answers callers got whole who ask again and again until the end of the context.

    An answer that fails, or is short, ends it with an error.
    """
    seen, leaving = Counter[str](), asyncio.Event()
    async with (
        AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(NUM_CALLERS):
            group.create_task(_ask_again_and_again(client, seen, leaving))
        yield seen
        leaving.set()


async def _ask_again_and_again(client: AsyncOpenAI, seen: Counter[str], leaving: asyncio.Event) -> None:
    while not leaving.is_set():
        stream = await client.chat.completions.create(
            model="mocker",
            messages=[{"role": "user", "content": "again and again"}],
            max_completion_tokens=NUM_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        told = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
        assert told == [NUM_TOKENS]
        seen["whole"] += 1


async def load_when(slot: EngineSlot, is_due: Callable[[pb.Load], bool]) -> pb.Load:
    """The load of an engine process, once it is what was waited for; the callers go on meanwhile."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_due(  # noqa: ASYNC110  # there is no event to await
            load := await asyncio.to_thread(load_of, slot.target)
        ):
            await asyncio.sleep(0.02)
    return load


def has_answered(load: pb.Load) -> bool:
    """This life of the engine has."""
    return load.requests_finished > 0


@pytest.mark.parametrize("drain_timeout", ["30", "0.1"], ids=["patient", "hasty"])
async def test_an_upgrade_of_all_engines_costs_no_caller_a_request(folder: Path, drain_timeout: str) -> None:
    async with (
        engines(folder, 2, (*MOCKER, "--shutdown-timeout", drain_timeout)) as slots,
        backend(folder, [slot.target for slot in slots]) as address,
        callers(address) as seen,
    ):
        for slot in slots:
            await load_when(slot, has_answered)
            assert await slot.end(signal.SIGTERM) == 0
            await slot.start()
            await load_when(slot, has_answered)
    assert seen["whole"] > NUM_CALLERS
