from __future__ import annotations

import asyncio

import pytest

from conformance import stopwatch
from conformance.stopwatch import TICK_SECONDS, Stopwatch


class Clock:
    """Moves only when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "monotonic", clock)
    return clock


async def test_what_the_target_takes_counts(clock: Clock) -> None:
    async with Stopwatch() as watch:
        clock.now = 3.0
    assert watch.seconds == 3.0
    clock.now = 9.0
    assert watch.seconds == 3.0


async def test_time_in_which_nobody_ran_does_not_count(clock: Clock) -> None:
    async with Stopwatch() as watch:
        await asyncio.sleep(0)
        clock.now = 5.0
        while not watch.held_up:  # noqa: ASYNC110  # until the tick that was due has run
            await asyncio.sleep(0)
        clock.now = 7.0
        assert watch.seconds == pytest.approx(2.0 + TICK_SECONDS)


async def test_nothing_of_it_stays_behind() -> None:
    before = asyncio.all_tasks()
    async with Stopwatch():
        pass
    assert asyncio.all_tasks() == before
