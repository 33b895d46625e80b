from __future__ import annotations

import asyncio
import time

import pytest

from enginewire.server.engines.interface import GenerateContext
from tests.server.engines.mocker.mockers import HELLO, LONG, started, turns


async def test_a_stalled_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = await started(fault="stall:3")
    _, answer = recorder.submit(token_ids=HELLO)
    await turns(10)
    assert len(answer.choices[0].token_ids) == 2
    assert recorder.engine.stalled_for() == 0.0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert 28.0 < recorder.engine.stalled_for() < 31.0


async def test_a_step_that_raises_shows_as_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    recorder = await started()
    recorder.engine.set_step_listener(lambda outputs: recorder.answers[GenerateContext("unknown")])
    recorder.submit(token_ids=HELLO)
    await turns(5)
    assert [type(error) for error in errors] == [KeyError]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert recorder.engine.stalled_for() > 28.0


async def test_a_healthy_engine_never_says_it_stalls() -> None:
    recorder = await started(itl_ms=60_000.0)
    recorder.submit(token_ids=HELLO)
    await turns(5)
    assert recorder.engine.stalled_for() == 0.0
    await recorder.engine.cleanup()
    assert recorder.engine.stalled_for() == 0.0


async def test_tokens_come_at_the_pace_that_was_asked_for() -> None:
    recorder = await started(ttft_ms=60.0, itl_ms=10.0)
    begin = time.monotonic()
    recorder.submit(token_ids=HELLO)
    await recorder.next_step()
    assert time.monotonic() - begin >= 0.06
    await recorder.idle()
    assert time.monotonic() - begin >= 0.06 + 6 * 0.01 - 0.005


async def test_the_event_loop_turns_while_tokens_come_as_fast_as_possible() -> None:
    recorder = await started()
    recorder.submit(token_ids=HELLO, stop_conditions=LONG)
    await turns(10)
    assert recorder.engine.load().step <= 10
