"""Requests that engines died under, tried one by one: whoever waits for that is not lost by waiting."""

from __future__ import annotations

import asyncio

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines import suspicion
from enginewire.backend.replay.retry import RetryPolicy
from tests.backend.asking import ask, hear
from tests.backend.hostile import HostileEngine, engine_info, terminal
from tests.backend.replay.test_attempts import LOST, backend_on
from tests.patience import PATIENCE_SECONDS

NUM_REQUESTS = 8
PREFILL_SECONDS = 0.15
# Less than the trials of all take together.
POLICY = RetryPolicy(shortest_backoff=0.001, longest_backoff=0.002, recovery=4 * PREFILL_SECONDS)
POISON = b"poison"


class DiesTwice(HostileEngine):
    """Dies as soon as everybody is in, twice; later only of poison. A prefill takes its time."""

    def __init__(self) -> None:
        info = engine_info()
        info.config.capabilities.MergeFrom(pb.Capabilities(resume=True, seed=True))
        super().__init__(info=info, names_life=False)
        self.deaths = [asyncio.Event(), asyncio.Event()]
        self.blocked: asyncio.Event | None = None

    def _script(self, request: pb.GenerateRequest) -> object:
        life, place = divmod(len(self.received) - 1, NUM_REQUESTS)
        if life < len(self.deaths):
            if place == NUM_REQUESTS - 1:
                self.deaths[life].set()
            return [self.deaths[life], LOST]
        if list(request.request.token_ids) == list(POISON):
            return [PREFILL_SECONDS, LOST]
        if self.blocked is not None and len(self.received) == 2 * NUM_REQUESTS + 1:
            return [self.blocked, terminal(b"pong")]
        return [PREFILL_SECONDS, terminal(b"pong")]


async def test_a_healthy_request_waits_for_the_trials_before_it_and_the_poison_is_found(
    socket_folder, vocabulary
) -> None:
    engine = DiesTwice()
    async with (
        backend_on(socket_folder, vocabulary, engine, policy=POLICY) as backend,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        requests = [ask(POISON), *(ask() for _ in range(NUM_REQUESTS - 1))]
        poisoned, *healthy = await asyncio.gather(*(hear(backend, request) for request in requests))
    assert "3 engines died under the request" in poisoned.failure.message
    assert [heard.failure for heard in healthy] == [None] * len(healthy)
    assert {heard.text() for heard in healthy} == {"pong"}
    assert len(engine.received) == 3 * NUM_REQUESTS


async def test_who_waits_for_a_trial_still_ends_at_the_deadline_of_its_caller(
    socket_folder, vocabulary
) -> None:
    engine = DiesTwice()
    engine.blocked = asyncio.Event()
    async with (
        backend_on(socket_folder, vocabulary, engine, policy=POLICY) as backend,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        heard = await asyncio.gather(*(hear(backend, ask(), timeout=2.0) for _ in range(NUM_REQUESTS)))
    assert all(each.failure is not None for each in heard)
    assert len(engine.received) == 2 * NUM_REQUESTS + 1


async def test_a_trial_that_an_engine_does_not_get_on_with_ends_after_some_time(
    socket_folder, vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "PROGRESS_SECONDS", 1.0)
    engine = DiesTwice()
    engine.blocked = asyncio.Event()
    async with (
        backend_on(socket_folder, vocabulary, engine, policy=POLICY) as backend,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        asked = [asyncio.create_task(hear(backend, ask())) for _ in range(NUM_REQUESTS)]
        while sum(each.done() for each in asked) < NUM_REQUESTS - 1:
            await asyncio.wait([each for each in asked if not each.done()], return_when="FIRST_COMPLETED")
        engine.blocked.set()
        heard = await asyncio.gather(*asked)
    assert [each.failure for each in heard] == [None] * NUM_REQUESTS
