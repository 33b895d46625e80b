"""Engines that die one after the other: of nothing that a request has done, and of one request."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.asking import Heard, ask
from tests.end_to_end.chaos.poisoned_engine import POISON
from tests.end_to_end.chaos.stage import EngineSlot, engines, hear_slowly, replaying

SLOW_TO_BEGIN = ("--engine", "mocker", "--mocker-ttft-ms", "1500", "--mocker-itl-ms", "2")
POISONED = ("--engine", "tests.end_to_end.chaos.poisoned_engine:DiesOfPoison")
NUM_HEALTHY = 8


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))


def healthy(number: int) -> pb.PreprocessedRequest:
    request = ask(b"healthy %d" % number, 40)
    request.stop_conditions.ignore_eos = True
    return request


@contextlib.asynccontextmanager
async def started_again(slots: list[EngineSlot]) -> AsyncIterator[list[int]]:
    """Whatever dies lives again; the numbers of those that died."""
    deaths: list[int] = []

    async def watch(number: int) -> None:
        while True:
            process = slots[number].process
            assert process is not None
            await process.wait()
            deaths.append(number)
            await slots[number].start()

    watchers = [asyncio.create_task(watch(number)) for number in range(len(slots))]
    try:
        yield deaths
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


def check(all_heard: list[Heard]) -> None:
    assert [heard.failure for heard in all_heard] == [None] * len(all_heard)
    assert {len(heard.token_ids()) for heard in all_heard} == {40}


async def test_a_node_that_loses_its_engines_one_after_the_other_loses_no_request(
    folder: Path, vocabulary: Vocabulary
) -> None:
    async with (
        engines(folder, 3, SLOW_TO_BEGIN) as slots,
        replaying([slot.target for slot in slots], vocabulary) as backend,
        asyncio.timeout(60),
    ):
        for slot in slots:
            await backend.engines.all[slots.index(slot)].client.wait_ready(30)
        all_heard = [Heard() for _ in range(NUM_HEALTHY)]
        tasks = [
            asyncio.create_task(hear_slowly(backend, healthy(number), heard))
            for number, heard in enumerate(all_heard)
        ]
        for slot in slots[:2]:
            await asyncio.sleep(0.4)
            await slot.end(signal.SIGKILL)
        check(await asyncio.gather(*tasks))


async def test_the_one_request_that_engines_die_of_is_found_and_its_neighbours_go_on(
    folder: Path, vocabulary: Vocabulary
) -> None:
    async with (
        engines(folder, 1, POISONED) as slots,
        started_again(slots) as deaths,
        replaying([slot.target for slot in slots], vocabulary) as backend,
        asyncio.timeout(90),
    ):
        requests = [ask(POISON, 40), *map(healthy, range(NUM_HEALTHY))]
        all_heard = [Heard() for _ in requests]
        poisoned, *others = await asyncio.gather(*map(hear_slowly, [backend] * 9, requests, all_heard))
    assert poisoned.failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert "engines died under the request" in poisoned.failure.message
    assert not poisoned.failure.retryable
    check(others)
    assert len(deaths) == 3
