"""A backend in front of vLLM and the torch engine: when one drains, the other one takes what comes."""

from __future__ import annotations

import asyncio
import signal

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.client import EngineClient
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from tests.backend.asking import Heard, hear
from tests.backend.our_processes import load_of, until
from tests.end_to_end.chaos import replaying
from tests.vllm_engine.live.conftest import TORCH, VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, request

PLACES = 4
CROWD = 4 * PLACES


def long_request(number: int) -> pb.PreprocessedRequest:
    made = request(f"Question {number}")
    made.stop_conditions.ignore_eos = True
    made.stop_conditions.max_tokens = 200
    return made


async def tokenizer_of(server: Server) -> BackendTokenizer:
    async with EngineClient(server.target) as client:
        return BackendTokenizer.from_files(await client.tokenizer_files())


async def crowd(backend: Backend) -> list[Heard]:
    """What many hear who ask at the same time."""
    return await asyncio.gather(*(hear(backend, long_request(number)) for number in range(CROWD)))


def check_handed_back(all_heard: list[Heard], truth: list[list[int]]) -> None:
    """Some wait when the drain begins: they get nothing but that. All others get everything.

    Engines of different kinds do not go on with each other's requests.
    """
    handed_back = [heard for heard in all_heard if heard.failure is not None]
    assert 0 < len(handed_back) < CROWD
    for heard in handed_back:
        assert heard.failure is not None
        assert heard.failure.reason == pb.ERROR_REASON_DRAINING
        assert heard.outputs == []
    for heard, tokens in zip(all_heard, truth, strict=True):
        assert heard.failure is not None or heard.token_ids() == tokens


async def check_drain(crowded: Server, other: Server, tokenizer: BackendTokenizer) -> None:
    """The same answers from both, and from the other one alone when the first one ends."""
    async with replaying([other.target], tokenizer.vocabulary) as backend:
        truth = list(map(Heard.token_ids, await crowd(backend)))
    async with replaying([crowded.target, other.target], tokenizer.vocabulary) as backend:
        await backend.engines.all[1].client.wait_ready(PATIENCE_SECONDS)
        asked = asyncio.create_task(crowd(backend))
        await asyncio.to_thread(until, lambda: load_of(crowded.target).waiting > 0)
        crowded.process.send_signal(signal.SIGTERM)
        check_handed_back(await asked, truth)
        again = await crowd(backend)
    assert [heard.failure for heard in again] == [None] * CROWD
    assert list(map(Heard.token_ids, again)) == truth
    assert crowded.process.wait(PATIENCE_SECONDS) == 0, crowded.log()


async def test_what_comes_when_one_engine_drains_goes_to_the_other_and_back(start: Start) -> None:
    vllm, first, second = start(*VLLM), start(*TORCH), start(*TORCH)
    for server in (first, second, vllm):
        server.wait_ready()
    tokenizer = await tokenizer_of(second)
    await check_drain(first, vllm, tokenizer)
    await check_drain(vllm, second, tokenizer)
