"""Links that do worse than to end: frames twice or not at all, GOAWAY, silence, and callers that freeze."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import Patience
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.asking import Heard, ask, hear
from tests.chaos.fleet import MOCKER, Certificates, fleet
from tests.chaos.history import Record, Truth
from tests.chaos.link import Change, Link, corrupted, doubled, dropped
from tests.end_to_end.chaos.stage import engines, hear_slowly, replaying
from tests.end_to_end.processes import Client, start_client_process
from tests.long import long, long_but
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

GOAWAY, NO_ERROR, ENHANCE_YOUR_CALM = 7, 0, 11
MAX_TOKENS = 60


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))


def request() -> pb.PreprocessedRequest:
    made = ask(b"over a bad link", MAX_TOKENS)
    made.stop_conditions.ignore_eos = True
    return made


def followed_by_goaway(code: int) -> Change:
    """What an engine server that is to be left says: no call after the one with the highest number."""
    payload = struct.pack(">II", 2**31 - 1, code)
    frame = struct.pack(">I", len(payload))[1:] + bytes([GOAWAY, 0]) + bytes(4) + payload
    return lambda data: data + frame


async def disturbed(
    folder: Path, vocabulary: Vocabulary, multiplexed: bool, change: Change
) -> tuple[Truth, Record]:
    """The answer over a good link, and that over one on which something happened to a message."""
    async with (
        engines(folder, 1) as slots,
        Link(slots[0].target) as link,
        # A length that is falsified makes gRPC wait for the rest of a message: only silence tells.
        replaying(
            [link.target], vocabulary, multiplexed=multiplexed, patience=Patience(token=2.0)
        ) as backend,
        asyncio.timeout(60),
    ):
        truth, heard = await hear(backend, request()), Heard()
        task = asyncio.create_task(hear_slowly(backend, request(), heard))
        await until_true(lambda: len(heard.token_ids()) > MAX_TOKENS // 4)
        link.change_next(change)
        await task
        # On a busy machine the answer can be over before anything was sent that could be changed.
        link.heal()
        # Whoever comes next is served.
        assert (await hear(backend, request())).token_ids() == truth.token_ids()
        return Truth.of(truth), Record(0, heard, task)


@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
@pytest.mark.parametrize("change", [doubled, dropped])
async def test_a_message_that_comes_twice_or_never_is_noticed(
    folder: Path, vocabulary: Vocabulary, multiplexed: bool, change: Change
) -> None:
    truth, record = await disturbed(folder, vocabulary, multiplexed, change)
    # Over plain TCP it may be an error, because a whole message was lost; never a wrong answer.
    assert record.beginning_fault(truth) == ""
    assert record.judge(truth) == ("lost" if record.heard.failure else "")


@pytest.mark.parametrize("seed", long_but([2], range(8)))
async def test_a_byte_that_is_another_one_ends_nobody_but_whom_it_hit(
    folder: Path, vocabulary: Vocabulary, seed: int
) -> None:
    _, record = await disturbed(folder, vocabulary, True, corrupted(random.Random(seed)))
    # Plain TCP has no more than a checksum, so another token may be in its place; TLS shows it.
    assert record.heard.failure is not None or len(record.heard.token_ids()) == MAX_TOKENS


async def test_over_tls_whatever_is_falsified_is_a_lost_connection(folder: Path) -> None:
    certificates = Certificates(folder)
    async with (
        fleet(folder, 1, (*MOCKER, *certificates.options)) as [engine],
        EngineClient(engine.link.target, trust=certificates.trust) as client,
    ):

        async def is_lost() -> bool:
            try:
                await client.load(PATIENCE_SECONDS)
            except RequestFailed as failure:
                if failure.reason != pb.ERROR_REASON_ENGINE_DEAD or not failure.retryable:
                    raise
                return True
            return False

        await client.wait_ready(PATIENCE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            # What is falsified may be something else that the engine has to say just then.
            while not await is_lost():
                engine.link.change_next(lambda data: data[:-1] + bytes([data[-1] ^ 1]))
            # The connection may take other calls with it before it is gone.
            while await is_lost():
                pass


@pytest.mark.parametrize("code", [NO_ERROR, ENHANCE_YOUR_CALM])
async def test_an_engine_that_says_go_away_is_left_without_a_loss(
    folder: Path, vocabulary: Vocabulary, code: int
) -> None:
    truth, record = await disturbed(folder, vocabulary, True, followed_by_goaway(code))
    assert record.judge(truth) == ""


@long
async def test_a_caller_that_freezes_holds_nothing_for_long(launch: Callable, connect: Callable) -> None:
    server = launch("--mocker-itl-ms", "20")
    client: Client = connect(server.target())
    with await asyncio.to_thread(start_client_process, server.target(), 4) as other:
        assert await asyncio.to_thread(other.stdout.readline) == "running\n"
        await client.until_running(8)
        os.kill(other.pid, signal.SIGSTOP)
        async with asyncio.timeout(120):
            while (await client.load()).running:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.2)
        other.kill()
