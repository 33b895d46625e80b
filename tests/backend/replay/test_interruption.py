from __future__ import annotations

import asyncio

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed, failed
from enginewire.backend.replay.interruption import Interruption

FAILURE = failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, "enough")


async def test_what_is_not_interrupted_has_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await Interruption().unless_caused(work) == 7


async def test_waiting_ends_with_the_failure_and_the_task_goes_on() -> None:
    interruption = Interruption()
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def task() -> str:
        with pytest.raises(RequestFailed) as caught:
            await interruption.unless_caused(work)
        assert caught.value is FAILURE
        await asyncio.sleep(0)
        return "still here"

    running = asyncio.create_task(task())
    await asyncio.sleep(0)
    interruption.cause(FAILURE)
    interruption.cause(FAILURE)
    assert await running == "still here"
    assert ended == ["work"]


async def test_what_begins_later_fails_at_once() -> None:
    interruption = Interruption()
    interruption.cause(FAILURE)

    async def work() -> None:
        raise AssertionError("it began")

    with pytest.raises(RequestFailed):
        await interruption.unless_caused(work)


async def test_a_task_that_is_cancelled_is_cancelled() -> None:
    running = asyncio.create_task(Interruption().unless_caused(asyncio.Event().wait))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
