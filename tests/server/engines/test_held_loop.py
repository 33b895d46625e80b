"""Who holds the event loop is told; who waits is not. With a clock that goes only where a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from enginewire.server.engines import held_loop
from enginewire.server.engines.held_loop import MAX_HELD_SECONDS, HeldLoop


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def go_on(self) -> None:
        self.now += MAX_HELD_SECONDS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(held_loop, "time", clock)
    return clock


async def test_who_holds_the_loop_is_told_once_what_to_do(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def holds() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            clock.go_on()
            yield number

    assert [number async for number in HeldLoop().watched(holds())] == [0, 1, 2]
    [warning] = caplog.messages
    assert warning.startswith("generate held the event loop for 0.25 s, ")
    assert "asyncio.to_thread" in warning


async def test_who_waits_is_told_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def waits() -> AsyncIterator[int]:
        for number in range(3):
            asyncio.get_running_loop().call_soon(clock.go_on)
            await asyncio.sleep(0)
            yield number

    numbers = []
    async for number in HeldLoop().watched(waits()):
        clock.go_on()  # whoever reads takes time, too
        numbers.append(number)
    assert (numbers, caplog.messages) == ([0, 1, 2], [])
    assert clock.now == 6 * MAX_HELD_SECONDS


async def test_a_cancelled_wait_ends_inside_of_what_is_watched() -> None:
    seen, began = [], asyncio.Event()

    async def waits() -> AsyncIterator[int]:
        try:
            began.set()
            await asyncio.Event().wait()
            yield 0
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def read() -> None:
        async for _ in HeldLoop().watched(waits()):
            pass

    task = asyncio.create_task(read())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
