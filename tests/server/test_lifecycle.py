"""Drain and cleanup, over a real socket: what runs finishes, what waits moves on, nothing ends in silence."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server import lifecycle
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, ask, detail_of, seconds, submit

LONG = 100_000
SLOW = {"mocker_itl_ms": 10.0}


async def drain(serving: Serving, **request: object) -> list[pb.DrainResponse]:
    return [progress async for progress in serving.engine.Drain(pb.DrainRequest(**request))]


def states(progress: list[pb.DrainResponse]) -> list[str]:
    names = [pb.DrainState.Name(item.state).removeprefix("DRAIN_STATE_") for item in progress]
    return [name for i, name in enumerate(names) if names[i - 1 : i] != [name]]


async def start_running(serving: Serving, count: int = 1, max_tokens: int = LONG) -> list[asyncio.Task]:
    running = [
        asyncio.create_task(serving.generate(ask(f"r{i}", max_tokens=max_tokens))) for i in range(count)
    ]
    await serving.until(lambda load: load.running == count)
    return running


class DeafEngine(MockerEngine):
    """Takes no notice of aborts."""

    async def abort(self, context: object) -> None:
        pass


async def test_an_idle_server_is_drained_at_once(engine_server):
    serving = await engine_server()
    progress = await drain(serving)
    assert states(progress)[-1] == "DRAINED"
    assert (await serving.load()).state == pb.ENGINE_STATE_DRAINING
    assert not await serving.is_serving()


async def test_running_requests_finish_and_progress_counts_them(engine_server):
    serving = await engine_server(**SLOW)
    running = await start_running(serving, 3, max_tokens=40)
    progress = await drain(serving)
    assert max(item.running for item in progress) == 3
    assert states(progress)[-2:] == ["DRAINING", "DRAINED"]
    assert (progress[-1].running, progress[-1].waiting) == (0, 0)
    for answer in await asyncio.gather(*running):
        assert answer.usage() == (5, 40)


async def test_new_requests_are_refused_as_retryable_before_any_message(engine_server):
    serving = await engine_server()
    await drain(serving)
    single = await serving.generate(ask())
    shared = await serving.multiplexed([submit(1, ask())])
    for answer in (single, shared[1]):
        assert answer.failure.reason == pb.ERROR_REASON_DRAINING
        assert answer.failure.retryable
        assert not answer.outputs


async def test_queued_requests_are_handed_back_as_retryable(engine_server):
    serving = await engine_server(max_num_seqs=1, **SLOW)
    [runs] = await start_running(serving, max_tokens=30)
    waits = asyncio.create_task(serving.generate(ask("waits")))
    await serving.until(lambda load: load.waiting == 1)
    await drain(serving)
    assert (await waits).failure.reason == pb.ERROR_REASON_DRAINING
    assert (await waits).failure.retryable
    assert (await runs).usage() == (5, 30)


async def test_late_requests_are_accepted_during_the_grace_and_refused_after_it(engine_server):
    serving = await engine_server(**SLOW)
    draining = asyncio.create_task(drain(serving, admission_grace=seconds(1.0)))
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    assert not await serving.is_serving()
    assert (await serving.generate(ask(max_tokens=2))).usage() == (5, 2)
    assert (states(await draining)[0], states(await draining)[-1]) == ("GRACE", "DRAINED")
    assert (await serving.generate(ask())).failure.reason == pb.ERROR_REASON_DRAINING


async def test_at_the_deadline_the_rest_ends_with_cancelled_and_usage(engine_server):
    serving = await engine_server(**SLOW)
    running = await start_running(serving, 2)
    begin = time.monotonic()
    progress = await drain(serving, deadline=seconds(0.2))
    assert 0.2 <= time.monotonic() - begin < PATIENCE_SECONDS
    assert states(progress)[-1] == "TIMED_OUT"
    for answer in await asyncio.gather(*running):
        assert answer.finishes() == {0: pb.FINISH_REASON_CANCELLED}
        assert answer.usage() == (5, len(answer.tokens()))


async def test_an_engine_that_does_not_react_cannot_hold_up_a_drain(engine_server, monkeypatch):
    monkeypatch.setattr(lifecycle, "CANCEL_GRACE_SECONDS", 0.1)
    engine = DeafEngine(MockerOptions(itl_ms=20.0))
    serving = await engine_server(engine)
    [runs] = await start_running(serving, max_tokens=50)
    assert states(await drain(serving, deadline=seconds(0)))[-1] == "TIMED_OUT"
    assert (await runs).failure.reason == pb.ERROR_REASON_DRAINING
    # What the deaf engine still says about the request reaches nobody.
    await serving.until_idle()


async def test_a_second_drain_joins_the_first_and_sees_its_end(engine_server):
    serving = await engine_server(**SLOW)
    await start_running(serving, 1, max_tokens=30)
    both = await asyncio.gather(drain(serving), drain(serving))
    assert [states(progress)[-1] for progress in both] == ["DRAINED", "DRAINED"]
    assert states(await drain(serving)) == ["DRAINED"]


@pytest.mark.parametrize("first_grace", [0.0, 60.0])
async def test_of_two_deadlines_the_earlier_wins_in_the_grace_too(engine_server, first_grace):
    serving = await engine_server(**SLOW)
    [runs] = await start_running(serving)
    first = asyncio.create_task(drain(serving, deadline=seconds(60), admission_grace=seconds(first_grace)))
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    begin = time.monotonic()
    await drain(serving, deadline=seconds(0.1))
    assert states(await first)[-1] == "TIMED_OUT"
    assert time.monotonic() - begin < PATIENCE_SECONDS
    assert (await runs).finishes() == {0: pb.FINISH_REASON_CANCELLED}


@pytest.mark.parametrize("field", ["deadline", "admission_grace"])
async def test_a_negative_duration_is_refused_and_drains_nothing(engine_server, field):
    serving = await engine_server()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await drain(serving, **{field: seconds(-1)})
    assert detail_of(caught.value).field == field
    assert (await serving.load()).state == pb.ENGINE_STATE_READY


async def test_who_stops_watching_a_drain_does_not_stop_it(engine_server):
    serving = await engine_server(**SLOW)
    [runs] = await start_running(serving, max_tokens=30)
    call = serving.engine.Drain(pb.DrainRequest())
    await call.read()
    call.cancel()
    assert (await runs).usage() == (5, 30)
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    assert states(await drain(serving)) == ["DRAINED"]


async def test_abort_and_facts_work_during_a_drain(engine_server):
    serving = await engine_server(**SLOW)
    [runs] = await start_running(serving)
    draining = asyncio.create_task(drain(serving))
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    assert (await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())).config.model == "mocker"
    await serving.engine.Abort(pb.AbortRequest(request_ids=["r0"]))
    assert (await runs).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert states(await draining)[-1] == "DRAINED"


async def cleanup(serving: Serving, **request: object) -> bool:
    return (await serving.engine.Cleanup(pb.CleanupRequest(**request))).already_clean


async def test_cleanup_happens_once_however_often_it_is_asked_for(engine_server):
    serving = await engine_server()
    answers = await asyncio.gather(*(cleanup(serving) for _ in range(10)))
    assert sorted(answers) == [False, *[True] * 9]
    assert await cleanup(serving, abort_in_flight=True)
    assert (await serving.load()).state == pb.ENGINE_STATE_STOPPED


async def test_after_a_cleanup_requests_are_refused_as_dead_even_when_a_drain_came_later(engine_server):
    serving = await engine_server(**SLOW)
    [runs] = await start_running(serving, max_tokens=20)
    cleaning = asyncio.create_task(cleanup(serving))
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    await anext(aiter(serving.engine.Drain(pb.DrainRequest())))
    assert (await serving.generate(ask("meanwhile"))).failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    await asyncio.gather(cleaning, runs)
    assert (await serving.generate(ask())).failure.reason == pb.ERROR_REASON_ENGINE_DEAD


async def test_in_a_cleanup_requests_are_refused_as_dead_in_the_grace_of_a_drain_and_after_it(
    engine_server,
):
    serving = await engine_server(**SLOW)
    [runs] = await start_running(serving, max_tokens=60)
    draining = aiter(serving.engine.Drain(pb.DrainRequest(admission_grace=seconds(0.1))))
    assert (await anext(draining)).state == pb.DRAIN_STATE_GRACE
    assert not (await serving.generate(ask("in-the-grace"))).failure
    cleaning = asyncio.create_task(cleanup(serving))
    await asyncio.sleep(0.02)
    assert (await serving.generate(ask("early"))).failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    while (await anext(draining)).state == pb.DRAIN_STATE_GRACE:
        pass
    assert (await serving.generate(ask("late"))).failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    await asyncio.gather(cleaning, runs)


async def test_cleanup_waits_for_streams_and_health_says_not_serving_meanwhile(engine_server):
    serving = await engine_server(**SLOW)
    [runs] = await start_running(serving, max_tokens=40)
    cleaning = asyncio.create_task(cleanup(serving))
    await serving.until(lambda load: load.state != pb.ENGINE_STATE_READY)
    assert not await serving.is_serving()
    assert (await serving.generate(ask("late"))).failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert (await runs).usage() == (5, 40)
    assert not await cleaning


async def test_cleanup_may_abort_what_is_in_flight(engine_server):
    serving = await engine_server(max_num_seqs=1, **SLOW)
    [runs] = await start_running(serving)
    waits = asyncio.create_task(serving.multiplexed([submit(1, ask("waits"))]))
    await serving.until(lambda load: load.waiting == 1)
    await cleanup(serving, abort_in_flight=True)
    assert (await runs).finishes() == {0: pb.FINISH_REASON_CANCELLED}
    assert (await waits)[1].finishes() == {0: pb.FINISH_REASON_CANCELLED}


class SlowToStart(MockerEngine):
    """Starts when it is let, and notes what happens to it in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start = asyncio.Event()
        self.history: list[str] = []

    async def start(self, worker_id: int) -> pb.EngineConfig:
        self.history.append("starting")
        await self.may_start.wait()
        self.history.append("started")
        return await super().start(worker_id)

    async def drain(self) -> None:
        self.history.append("drained")

    async def cleanup(self) -> None:
        self.history.append("cleaned up")
        await super().cleanup()


async def test_a_cleanup_during_the_start_waits_for_its_end(engine_server):
    engine = SlowToStart()
    serving = await engine_server(engine, is_started=False)
    starting = asyncio.create_task(serving.server.start())
    await asyncio.sleep(0)
    cleaning = asyncio.create_task(cleanup(serving))
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    engine.may_start.set()
    assert not await cleaning
    await starting
    assert engine.history == ["starting", "started", "cleaned up"]
    assert (await serving.load()).state == pb.ENGINE_STATE_STOPPED


async def test_a_cleanup_before_the_start_is_fine_and_final(engine_server):
    engine = SlowToStart()
    serving = await engine_server(engine, is_started=False)
    assert not await cleanup(serving)
    with pytest.raises(lifecycle.EngineDead):
        await serving.server.start()
    assert engine.history == ["cleaned up"]


async def test_a_drain_during_the_start_keeps_requests_out_and_the_unstarted_engine_alone(engine_server):
    engine = SlowToStart()
    serving = await engine_server(engine, is_started=False)
    starting = asyncio.create_task(serving.server.start())
    assert states(await drain(serving))[-1] == "DRAINED"
    engine.may_start.set()
    await starting
    assert (await serving.load()).state == pb.ENGINE_STATE_DRAINING
    assert (await serving.generate(ask())).failure.reason == pb.ERROR_REASON_DRAINING
    assert engine.history == ["starting", "started"]


async def test_a_dead_engine_does_not_come_back_by_a_drain(engine_server):
    serving = await engine_server()
    await serving.server.lifecycle.declare_dead(1.0)
    await drain(serving)
    assert (await serving.load()).state == pb.ENGINE_STATE_DEAD
    assert not await serving.is_serving("")
