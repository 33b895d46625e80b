"""What the step thread says about the load after a step."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import EngineDead, InvalidRequest
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.step_thread import LoadSnapshot, StepThread
from tests.torch_engine.tiny import greedy

PROMPT = [5, 9, 33, 7, 100, 12, 8, 21, 9]


def ignore(*_: object) -> None:
    """What happens beside the load."""


async def test_a_snapshot_tells_what_runs_what_waits_and_what_has_happened(load):
    engine = load("llama", max_num_seqs=2, block_size=4, num_kv_blocks=20)
    options = TorchEngineOptions(model="none")
    thread = StepThread(options, asyncio.get_running_loop(), ignore, ignore, ignore, ignore)
    first = engine.add(greedy(PROMPT, 3))
    engine.step()
    for prompt, max_tokens in ((PROMPT, 5), (PROMPT[:7], 6), (PROMPT[:6], 7)):
        engine.add(greedy(prompt, max_tokens))
    engine.step()
    engine.preempt_one()
    engine.step()
    assert len(engine.answers[first].tokens[0]) == 3
    thread._publish(engine.core)
    # Preempted, the second one began again beside the first one, which has ended since. It began with its
    # prompt alone: the token it had gets a step of its own.
    assert thread.snapshot == LoadSnapshot(
        pb.Load(
            running=1,
            waiting=2,
            waiting_tokens=7 + 6,
            kv_blocks_used=3,
            kv_blocks_total=20,
            step=3,
            preemptions=1,
            requests_finished=1,
            tokens_generated=3 + 1,
        ),
        requests_added=4,
        max_total_tokens=9 + 5,
        concats=(2, 0),
        prefix_cache_queries=9 + 9,
        prefix_cache_hits=8,
    )


@pytest.mark.parametrize("is_refused", [False, True])
async def test_whoever_left_before_the_answer_is_not_answered(model_folder, is_refused):
    loop = asyncio.get_running_loop()
    unheard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    options = TorchEngineOptions(model=str(model_folder("llama")), device="cpu", num_threads=1)
    thread = StepThread(options, loop, ignore, ignore, ignore, ignore)
    thread.start()
    await thread.loaded
    is_asked, may_answer = threading.Event(), threading.Event()

    def question(core: EngineCore) -> int:
        is_asked.set()
        may_answer.wait()
        if is_refused:
            raise InvalidRequest("refused")
        return 1

    asked = asyncio.create_task(thread.ask(question))
    try:
        await asyncio.to_thread(is_asked.wait)
        asked.cancel()
        await asyncio.wait([asked])
        may_answer.set()
        assert await thread.ask(lambda core: 2) == 2  # the thread goes on, and has delivered the first answer
    finally:
        may_answer.set()
        thread.stop()
        assert await asyncio.to_thread(thread.join, 60)
    assert unheard == []


async def test_a_question_may_be_refused(model_folder):
    options = TorchEngineOptions(model=str(model_folder("llama")), device="cpu", num_threads=1)
    thread = StepThread(options, asyncio.get_running_loop(), ignore, ignore, ignore, ignore)
    thread.start()
    await thread.loaded

    def refuse(core: EngineCore) -> int:
        raise InvalidRequest("refused")

    try:
        with pytest.raises(InvalidRequest, match="refused"):
            await thread.ask(refuse)
    finally:
        thread.stop()
        assert await asyncio.to_thread(thread.join, 60)
    with pytest.raises(EngineDead):
        await thread.ask(lambda core: 1)
