"""A backend in front of vLLM and the torch engine: what one hands back the other computes."""

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


async def crowd(backend: Backend) -> list[list[int]]:
    """The tokens of many requests at the same time, none of which may fail."""
    heard = await asyncio.gather(*(hear(backend, long_request(number)) for number in range(CROWD)))
    assert [each.failure for each in heard] == [None] * CROWD
    return list(map(Heard.token_ids, heard))


async def drained_among(crowded: Server, other: Server, tokenizer: BackendTokenizer) -> list[list[int]]:
    """What a crowd at both servers hears when the first one is told to end while some of it waits there."""
    async with replaying([crowded.target, other.target], tokenizer.vocabulary) as backend:
        await backend.engines.all[1].client.wait_ready(PATIENCE_SECONDS)
        asked = asyncio.create_task(crowd(backend))
        await asyncio.to_thread(until, lambda: load_of(crowded.target).waiting > 0)
        crowded.process.send_signal(signal.SIGTERM)
        return await asked


async def test_what_a_drain_hands_back_goes_to_the_other_engine_and_nobody_can_tell(start: Start) -> None:
    vllm, first, second = start(*VLLM), start(*TORCH), start(*TORCH)
    for server in (first, second, vllm):
        server.wait_ready()
    tokenizer = await tokenizer_of(second)
    async with replaying([second.target], tokenizer.vocabulary) as backend:
        truth = await crowd(backend)
    assert await drained_among(first, vllm, tokenizer) == truth
    assert first.process.wait(PATIENCE_SECONDS) == 0, first.log()
    assert await drained_among(vllm, second, tokenizer) == truth
    assert vllm.process.wait(PATIENCE_SECONDS) == 0, vllm.log()
