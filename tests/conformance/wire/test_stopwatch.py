from __future__ import annotations

import asyncio

import pytest

from enginewire.conformance.wire import stopwatch
from enginewire.conformance.wire.stopwatch import TICK_SECONDS, Stopwatch, within


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


async def passes(clock: Clock, watch: Stopwatch, ticks: int) -> None:
    """Time in which this process looks at the clock whenever it is due."""
    for _ in range(ticks):
        clock.now = due = watch.due
        while watch.due == due:  # noqa: ASYNC110  # until the tick that was due has run
            await asyncio.sleep(0)


async def test_what_the_target_takes_counts(clock: Clock) -> None:
    async with Stopwatch() as watch:
        await passes(clock, watch, 3)
    assert watch.seconds == pytest.approx(3 * TICK_SECONDS)
    clock.now = 9.0
    assert watch.seconds == pytest.approx(3 * TICK_SECONDS)


async def test_time_in_which_nobody_ran_does_not_count(clock: Clock) -> None:
    async with Stopwatch() as watch:
        await passes(clock, watch, 1)
        clock.now += 5.0
        assert watch.seconds == pytest.approx(2 * TICK_SECONDS), "nor before the tick that was due has run"
        while not watch.held_up:  # noqa: ASYNC110  # until it has
            await asyncio.sleep(0)
        await passes(clock, watch, 1)
        assert watch.seconds == pytest.approx(3 * TICK_SECONDS)


async def test_nothing_of_it_stays_behind() -> None:
    before = asyncio.all_tasks()
    async with Stopwatch():
        pass
    assert asyncio.all_tasks() == before


async def test_an_answer_in_time_is_returned() -> None:
    assert await within(60, asyncio.sleep(0, "answer")) == "answer"


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await within(TICK_SECONDS, never)
    assert never.cancelled()


async def test_an_answer_that_only_a_stalled_machine_held_back_is_in_time(clock: Clock) -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(1.0, answer))
    await asyncio.sleep(0)
    clock.now = 30.0
    answer.set_result("late by the clock on the wall")
    assert await waiting == "late by the clock on the wall"
