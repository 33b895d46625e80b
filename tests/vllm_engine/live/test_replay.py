"""A backend in front of vLLM and the torch engine: what one of them leaves, the other one takes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence

import psutil

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.backend.replay.retry import RetryPolicy
from tests.backend.asking import Heard, hear
from tests.backend.our_processes import load_of, until
from tests.end_to_end.chaos.stage import migrations, replaying
from tests.vllm_engine.live.conftest import DRAIN_SECONDS, TORCH, VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, request

PLACES = 4
CROWD = 8 * PLACES
"""Of the half that each engine gets, some wait for most of the time."""
TOKENS = 200
LOST = {pb.ERROR_REASON_ENGINE_DEAD, pb.ERROR_REASON_STREAM_INCOMPLETE}
RECOVERY_SECONDS = 5.0
"""How long an answer waits for an engine that goes on with it."""


def long_request(number: int, **sampling: float) -> pb.PreprocessedRequest:
    made = request(f"Question {number}", **sampling)
    made.stop_conditions.ignore_eos = True
    made.stop_conditions.max_tokens = TOKENS
    return made


async def tokenizer_of(server: Server) -> BackendTokenizer:
    async with EngineClient(server.target) as client:
        return BackendTokenizer.from_files(await client.tokenizer_files())


async def crowd(backend: Backend, **sampling: float) -> list[Heard]:
    """What many hear who ask at the same time."""
    return await asyncio.gather(*(hear(backend, long_request(n, **sampling)) for n in range(CROWD)))


async def truth_of(server: Server, tokenizer: BackendTokenizer) -> list[list[int]]:
    """The greedy answers of an undisturbed engine."""
    async with replaying([server.target], tokenizer.vocabulary) as backend:
        return list(map(Heard.token_ids, await crowd(backend)))


async def heard_while(
    ends: Callable[[], object],
    one: Server,
    other: Server,
    tokenizer: BackendTokenizer,
    **sampling: float,
) -> list[Heard]:
    """What a crowd hears that asks both engines, while `ends` ends the one, some of which still waits."""
    policy = RetryPolicy(recovery=RECOVERY_SECONDS)
    targets: Sequence[str] = [one.target, other.target]
    async with replaying(targets, tokenizer.vocabulary, policy=policy) as backend:
        for endpoint in backend.engines.all:
            await endpoint.client.wait_ready(PATIENCE_SECONDS)
        asked = asyncio.create_task(crowd(backend, **sampling))
        # Two reports: the first one that has a place taken may come before its first token.
        await asyncio.to_thread(
            until, lambda: asked.done() or is_crowded(load_of(one.target)), PATIENCE_SECONDS
        )
        assert not asked.done(), "everybody was answered before it was seen that some wait"
        ends()
        return await asked


def is_crowded(load: pb.Load) -> bool:
    return load.waiting > 0 and load.tokens_generated >= 2 * PLACES


def check_gone(family: Sequence[psutil.Process]) -> None:
    """No process is left."""
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    assert alive == []


def check_all_answered(all_heard: Sequence[Heard], truth: Sequence[Sequence[int]]) -> None:
    assert [heard.failure for heard in all_heard] == [None] * CROWD
    assert list(map(Heard.token_ids, all_heard)) == list(truth)


async def test_what_a_draining_torch_engine_hands_back_begins_at_vllm(start: Start, vllm: Server) -> None:
    draining = start(*TORCH)
    draining.wait_ready()
    tokenizer = await tokenizer_of(draining)
    truth = await truth_of(vllm, tokenizer)
    ends = draining.process.terminate
    check_all_answered(await heard_while(ends, draining, vllm, tokenizer), truth)
    assert draining.process.wait(DRAIN_SECONDS) == 0, draining.log()


async def test_what_a_draining_vllm_hands_back_begins_at_the_torch_engine(
    start: Start, torch: Server
) -> None:
    """The signal goes to the whole group, as that of Ctrl-C: what runs in vLLM finishes all the same."""
    draining = start(*VLLM)
    draining.wait_ready()
    family = draining.family()
    tokenizer = await tokenizer_of(torch)
    truth = await truth_of(torch, tokenizer)

    def ends() -> None:
        os.killpg(draining.process.pid, signal.SIGTERM)

    all_heard = await heard_while(ends, draining, torch, tokenizer)
    check_all_answered(all_heard, truth)
    assert not any(map(migrations, all_heard))
    assert draining.process.wait(DRAIN_SECONDS) == 0, draining.log()
    check_gone(family)


async def test_greedy_answers_of_a_killed_vllm_go_on_at_the_torch_engine(start: Start, torch: Server) -> None:
    lost = start(*VLLM)
    lost.wait_ready()
    family = lost.family()
    tokenizer = await tokenizer_of(torch)
    truth = await truth_of(torch, tokenizer)
    all_heard = await heard_while(lost.process.kill, lost, torch, tokenizer)
    check_all_answered(all_heard, truth)
    assert any(map(migrations, all_heard))
    check_gone(family)


async def test_of_a_killed_torch_engine_vllm_takes_what_nobody_has_seen_anything_of(
    start: Start, vllm: Server
) -> None:
    lost = start(*TORCH)
    lost.wait_ready()
    tokenizer = await tokenizer_of(lost)
    all_heard = await heard_while(lost.process.kill, lost, vllm, tokenizer, temperature=1.0)
    answered = [heard for heard in all_heard if heard.failure is None]
    assert all(len(heard.token_ids()) == TOKENS for heard in answered)
    given_up = [heard for heard in all_heard if heard.failure is not None]
    # Those that ran: what waited there, and all that was at vLLM, is answered.
    assert 0 < len(given_up) <= PLACES
    for heard in given_up:
        assert heard.failure is not None
        assert heard.token_ids()
        assert heard.failure.reason in LOST
