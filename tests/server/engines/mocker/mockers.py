"""Mockers under test: started, and looked at between two turns of the event loop."""

from __future__ import annotations

import asyncio

from enginewire.server.engines.mocker.engine import MockerEngine, MockerOptions
from tests.server.step_recorder import Answer, Recorder

HELLO = list(b"Hello!")


LONG = {"max_tokens": 1000, "ignore_eos": True}


async def started(**options: object) -> Recorder:
    engine = MockerEngine(MockerOptions(**options))
    await engine.start(1)
    return Recorder(engine)


async def turns(count: int) -> None:
    """Let the event loop turn: the mocker takes one step in each."""
    for _ in range(count):
        await asyncio.sleep(0)


def assert_idle(recorder: Recorder) -> None:
    load = recorder.engine.load()
    assert (load.running, load.waiting, load.kv_blocks_used, load.waiting_tokens) == (0, 0, 0, 0)


def sampled(recorder: Recorder, n: int = 1, **sampling: object) -> Answer:
    options = {"temperature": 1.0, "n": n, **sampling}
    return recorder.submit(token_ids=HELLO, sampling_options=options, stop_conditions=LONG)[1]
