"""An upgrade with real processes: engines leave as a kubelet ends them, and callers see nothing."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from openai import AsyncOpenAI

from enginewire import v1 as pb
from tests.backend.our_processes import load_of
from tests.deploy.asking import ask, told_tokens
from tests.end_to_end.chaos.stage import EngineSlot, engines
from tests.long import long
from tests.patience import PATIENCE_SECONDS

NUM_CALLERS, NUM_TOKENS = 16, 20
# Takes longer than any test may, so that nothing ends it but its caller.
ENDLESS_TOKENS = 60_000
MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "20", "--max-model-len", "65536")


@dataclass(frozen=True)
class Calls:
    """By address: answers that came whole, and requests whose answer has not begun."""

    whole: Counter[str] = field(default_factory=Counter)
    unheard: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def backend(
    folder: Path, targets: list[str], *options: str, name: str = "backend"
) -> AsyncIterator[str]:
    """Where a backend process serves HTTP. It ends as a kubelet ends it, and has to exit with 0."""
    arguments = [*(f"--target={each}" for each in targets), f"--uds={folder}/{name}.sock", "--http-port=0"]
    argv = [sys.executable, "-m", "enginewire.backend", "serve", *arguments, *options]
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while not (found := re.search(r"http://\S+", line := (await process.stderr.readline()).decode())):
            assert line, "it has ended"
        yield found[0]
    finally:
        process.terminate()
        assert await process.wait() == 0


@asynccontextmanager
async def callers(addresses: Sequence[str]) -> AsyncIterator[Calls]:
    """What became of the calls of callers that ask again and again until the end.

    `addresses` may change meanwhile. An answer that fails, or is short, ends it with an error.
    """
    calls, leaving = Calls(), asyncio.Event()
    async with (
        AsyncOpenAI(api_key="none", max_retries=0, timeout=PATIENCE_SECONDS) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(NUM_CALLERS):
            dice = random.Random(number)
            group.create_task(_ask_again_and_again(client, addresses, dice, calls, leaving))
        yield calls
        leaving.set()


async def _ask_again_and_again(
    client: AsyncOpenAI,
    addresses: Sequence[str],
    dice: random.Random,
    calls: Calls,
    leaving: asyncio.Event,
) -> None:
    while not leaving.is_set():
        address = dice.choice(addresses)
        calls.unheard[address] += 1
        stream = await ask(client.with_options(base_url=f"{address}/v1"), NUM_TOKENS)
        calls.unheard[address] -= 1
        assert await told_tokens(stream) == [NUM_TOKENS]
        calls.whole[address] += 1


@asynccontextmanager
async def endless_answer(address: str) -> AsyncIterator[None]:
    """A caller whose answer has begun, and goes on as long as this lasts."""
    async with AsyncOpenAI(
        api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=PATIENCE_SECONDS
    ) as client:
        stream, pieces = await ask(client, ENDLESS_TOKENS), asyncio.Semaphore(0)

        async def listen() -> None:
            async for chunk in stream:
                if any(choice.delta.content for choice in chunk.choices):
                    pieces.release()

        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            await pieces.acquire()
            yield
            assert not listening.done()
            listening.cancel()


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


async def continuations_of(address: str) -> float:
    """How many answers of a backend have gone on at another engine."""
    async with httpx2.AsyncClient(base_url=address) as client:
        page = (await client.get("/metrics")).text
    return float(re.findall(r"^enginewire:continuations_total(?:{.*})? (\S+)$", page, re.MULTILINE)[0])


@long
async def test_a_patient_upgrade_of_all_engines_costs_no_caller_a_request(folder: Path) -> None:
    async with (
        engines(folder, 2, (*MOCKER, "--shutdown-timeout", "30")) as slots,
        backend(folder, [slot.target for slot in slots]) as address,
    ):
        async with callers([address]) as calls:
            await replace_all(slots)
        assert await continuations_of(address) == 0
    assert calls.whole[address] > NUM_CALLERS


@long
async def test_replay_hides_from_callers_what_a_hasty_upgrade_does_not_finish(folder: Path) -> None:
    async with (
        engines(folder, 2, (*MOCKER, "--shutdown-timeout", "0.1")) as slots,
        backend(folder, [slot.target for slot in slots]) as address,
        callers([address]) as calls,
        endless_answer(address),
    ):
        await replace_all(slots)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await continuations_of(address):  # noqa: ASYNC110  # there is no event to await
                await asyncio.sleep(0.02)
    assert calls.whole[address] > NUM_CALLERS


@long
async def test_an_upgrade_of_engines_and_backends_costs_no_caller_a_request(folder: Path) -> None:
    async with engines(folder, 3, (*MOCKER, "--shutdown-timeout", "30")) as slots, AsyncExitStack() as stack:
        targets = [slot.target for slot in slots]
        lives = [await stack.enter_async_context(AsyncExitStack()) for _ in range(4)]
        ready: list[str] = []
        for number in range(2):
            ready.append(await lives[number].enter_async_context(backend(folder, targets, name=f"b{number}")))
        old = [*ready]
        async with callers(ready) as calls:
            await replace_all(slots)
            for number, address in enumerate(old):
                # The new one is there before the old one goes. That takes a while for what is on its way.
                new = await lives[number + 2].enter_async_context(backend(folder, targets, name=f"n{number}"))
                ready.append(new)
                ready.remove(address)
                while calls.unheard[address]:  # noqa: ASYNC110  # there is no event to await
                    await asyncio.sleep(0.02)
                await lives[number].aclose()
            while not all(calls.whole[address] for address in ready):  # noqa: ASYNC110  # there is no event to await
                await asyncio.sleep(0.02)
    assert all(calls.whole[address] for address in old)


async def replace_all(slots: Sequence[EngineSlot]) -> None:
    """One engine after the other ends, and another one comes in its place."""
    for slot in slots:
        await load_when(slot, has_answered)
        assert await slot.end(signal.SIGTERM) == 0
        await slot.start()
        await load_when(slot, has_answered)
