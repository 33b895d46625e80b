"""Engines are killed, frozen and restarted; callers get the answers an undisturbed engine gives."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.asking import Heard, ask, hear
from tests.end_to_end.chaos.stage import (
    MOCKER,
    EngineSlot,
    answer_of,
    engines,
    hear_slowly,
    kinds_of_requests,
    migrations,
    replaying,
)
from tests.long import long_but
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

PROMPT = b"the quick brown fox"
MAX_TOKENS = 120
# Of each of the three engines; `make chaos` kills many more.
NUM_KILLS_PER_WAY = 3
# Two minutes of an engine: nothing ends that but its caller.
ENDLESS_TOKENS = 60_000
LONG_CONTEXT = ("--max-model-len", "65536")
SLOW_TO_GO_ON = ("--engine", "mocker", "--mocker-itl-ms", "200")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))


def requests() -> list[pb.PreprocessedRequest]:
    return list(kinds_of_requests(PROMPT, MAX_TOKENS))


async def oracle(backend: Backend) -> list[dict[int, tuple[object, ...]]]:
    """The answers of an engine that nobody disturbs."""
    return [answer_of(heard) for heard in await asyncio.gather(*(hear(backend, r) for r in requests()))]


@asynccontextmanager
async def endless_answer(backend: Backend) -> AsyncIterator[Heard]:
    """What a caller has heard so far whose answer has begun, and goes on as long as this lasts."""
    request, heard = ask(PROMPT, ENDLESS_TOKENS), Heard()
    request.stop_conditions.ignore_eos = True
    task = asyncio.create_task(hear_slowly(backend, request, heard))
    try:
        await until_true(lambda: bool(heard.outputs))
        yield heard
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def kill_one_while_talking(
    backend: Backend, slots: list[EngineSlot], dice: random.Random, number: int
) -> list[Heard]:
    """What eight callers hear while the engine dies that most of them talk to; it is started again."""
    all_heard = [Heard() for _ in requests()]
    tasks = [
        asyncio.create_task(hear_slowly(backend, request, heard))
        for request, heard in zip(requests(), all_heard, strict=True)
    ]
    num_tokens = dice.randrange(MAX_TOKENS // 2)
    await until_true(lambda: max(len(heard.token_ids()) for heard in all_heard) >= num_tokens)
    victim = slots[number % len(slots)]
    await victim.end(signal.SIGKILL)
    await victim.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await asyncio.gather(*tasks)


@pytest.mark.parametrize("multiplexed", long_but([True], [True, False]), ids=["multiplexed", "generate"])
async def test_kills_lose_and_change_nothing(folder: Path, vocabulary: Vocabulary, multiplexed: bool) -> None:
    dice = random.Random(1)
    async with (
        engines(folder, 3) as slots,
        replaying([slot.target for slot in slots], vocabulary, multiplexed=multiplexed) as backend,
    ):
        truth = await oracle(backend)
        num_migrated = 0
        for number in range(NUM_KILLS_PER_WAY):
            heard = await kill_one_while_talking(backend, slots, dice, number)
            assert [answer_of(each) for each in heard] == truth
            num_migrated += sum(len(migrations(each)) for each in heard)
    assert num_migrated >= NUM_KILLS_PER_WAY


async def test_the_only_engine_is_waited_for(folder: Path, vocabulary: Vocabulary) -> None:
    async with (
        engines(folder, 1, (*MOCKER, *LONG_CONTEXT)) as slots,
        replaying([slots[0].target], vocabulary) as backend,
        endless_answer(backend) as endless,
    ):
        truth = await oracle(backend)
        heard = await kill_one_while_talking(backend, slots, random.Random(2), 0)
        assert [answer_of(each) for each in heard] == truth
        await until_true(lambda: bool(migrations(endless)))


async def test_a_frozen_engine_is_left(folder: Path, vocabulary: Vocabulary) -> None:
    async with (
        engines(folder, 2, (*MOCKER, *LONG_CONTEXT)) as slots,
        replaying([slot.target for slot in slots], vocabulary) as backend,
    ):
        await backend.engines.all[1].client.wait_ready(20)
        truth = await oracle(backend)
        async with endless_answer(backend) as endless:
            talking = next(i for i, endpoint in enumerate(backend.engines.all) if endpoint.in_flight)
            all_heard = [Heard() for _ in requests()]
            tasks = [
                asyncio.create_task(hear_slowly(backend, request, heard))
                for request, heard in zip(requests(), all_heard, strict=True)
            ]
            await until_true(lambda: any(heard.outputs for heard in all_heard))
            process = slots[talking].process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(PATIENCE_SECONDS):
                heard = await asyncio.gather(*tasks)
                await until_true(lambda: bool(migrations(endless)))
    assert [answer_of(each) for each in heard] == truth


@pytest.mark.parametrize("drain_timeout", long_but(["30"], ["30", "0.1"]), ids=["patient", "hasty"])
async def test_a_rolling_restart_under_load_loses_nothing(
    folder: Path, vocabulary: Vocabulary, drain_timeout: str
) -> None:
    async with (
        engines(folder, 2, (*MOCKER, *LONG_CONTEXT, "--shutdown-timeout", drain_timeout)) as slots,
        replaying([slot.target for slot in slots], vocabulary) as backend,
    ):
        # One that is still being started does not handle the signal yet.
        for endpoint in backend.engines.all:
            await endpoint.client.wait_ready(20)
        truth = await oracle(backend)
        is_over = asyncio.Event()
        callers = [asyncio.create_task(ask_until(is_over, backend, truth, i)) for i in range(len(truth))]
        if drain_timeout == "0.1":
            async with endless_answer(backend) as endless:
                await restart_one_after_the_other(slots, backend)
                await until_true(lambda: bool(migrations(endless)))
        else:
            await restart_one_after_the_other(slots, backend)
        is_over.set()
        all_heard = await asyncio.gather(*callers)
    assert min(map(len, all_heard)) >= 2
    # An engine with patience finishes what it has begun: replay has nothing to hide.
    if drain_timeout == "30":
        assert not any(any(map(migrations, heard)) for heard in all_heard)


async def restart_one_after_the_other(slots: list[EngineSlot], backend: Backend) -> None:
    """By SIGTERM, while callers ask."""
    for slot, endpoint in zip(slots, backend.engines.all, strict=True):
        await asyncio.sleep(0.2)
        assert await slot.end(signal.SIGTERM) == 0
        await slot.start()
        await endpoint.client.wait_ready(20)


async def ask_until(
    is_over: asyncio.Event, backend: Backend, truth: list[dict[int, tuple[object, ...]]], index: int
) -> list[Heard]:
    """Ask the same again and again; returns what was heard each time."""
    all_heard: list[Heard] = []
    while not is_over.is_set():
        all_heard.append(await hear(backend, requests()[index]))
        assert answer_of(all_heard[-1]) == truth[index]
    return all_heard


async def test_an_engine_killed_again_and_again_gives_a_typed_error(
    folder: Path, vocabulary: Vocabulary
) -> None:
    request = requests()[0]
    request.stop_conditions.max_tokens = 4000
    heard = Heard()
    async with (
        engines(folder, 2, SLOW_TO_GO_ON) as slots,
        replaying([s.target for s in slots], vocabulary) as backend,
    ):
        await backend.engines.all[1].client.wait_ready(20)
        task = asyncio.create_task(hear_slowly(backend, request, heard))
        for count in (2, 4):  # so few tokens that the request may be the cause
            await until_true(lambda count=count: len(heard.items) >= count)
            talking = next(i for i, endpoint in enumerate(backend.engines.all) if endpoint.in_flight)
            await slots[talking].end(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await task
    assert heard.failure is not None
    assert heard.failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert not heard.failure.retryable
    assert "2 engines died" in heard.failure.message
