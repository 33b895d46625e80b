from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Coroutine

from enginewire.backend.bench.run import Finished, Run
from enginewire.backend.bench.summary import summarize
from enginewire.backend.bench.timeline import Delivery, Failed, Piece
from enginewire.backend.bench.workload import Job


class VirtualClock:
    """Jumps to the next moment that somebody waits for, once nobody has anything else to do."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    async def sleep_until(self, moment: float) -> None:
        if moment > self._now:
            woken = asyncio.Event()
            heapq.heappush(self._sleepers, (moment, id(woken), woken))
            await woken.wait()

    async def drive(self, work: Coroutine[None, None, Finished]) -> Finished:
        task = asyncio.ensure_future(work)
        while not task.done():
            # More rounds of the loop than any chain of wake-ups in these tests.
            for _ in range(50):
                await asyncio.sleep(0)
            if self._sleepers:
                self._now, _, woken = heapq.heappop(self._sleepers)
                woken.set()
        return task.result()


class SteadyTarget:
    """The first token after 0.5 s, then one every 0.1 s."""

    def __init__(self, clock: VirtualClock, fail: Callable[[Job], bool] = lambda job: False) -> None:
        self._clock = clock
        self._fail = fail
        self.closed = 0

    async def answer(self, job: Job) -> AsyncGenerator[Piece, None]:
        try:
            begin = self._clock.now()
            for number in range(job.max_tokens):
                await self._clock.sleep_until(begin + 0.5 + number * 0.1)
                if self._fail(job) and number == 1:
                    raise Failed("broken")
                yield Delivery(1)
        finally:
            self.closed += 1


async def measured(
    num_jobs: int, arrivals: list[float], max_concurrency: int | None = None, **given: object
) -> Finished:
    clock = VirtualClock()
    jobs = [Job(max_tokens=6, token_ids=(1, 2, number)) for number in range(num_jobs)]
    return await clock.drive(
        Run(SteadyTarget(clock, **given), clock, max_concurrency).measure(jobs, arrivals)
    )


async def test_what_was_measured_is_what_the_target_did() -> None:
    finished = await measured(3, [0.0, 0.25, 4.0])
    summary = summarize(finished.timelines, finished.duration, finished.peak_concurrency)
    assert [timeline.begin for timeline in finished.timelines] == [0.0, 0.25, 4.0]
    for metric, milliseconds in {"ttft": 500, "tpot": 100, "itl": 100, "e2el": 1000}.items():
        assert all(abs(sample - milliseconds) < 1e-6 for sample in summary.latencies[metric].samples)
    assert (summary.completed, summary.num_input_tokens, summary.num_output_tokens) == (3, 9, 18)
    assert (finished.duration, finished.peak_concurrency) == (5.0, 2)


async def test_no_more_than_the_allowed_requests_run_at_the_same_time() -> None:
    finished = await measured(6, [0.0] * 6, max_concurrency=2)
    assert [timeline.begin for timeline in finished.timelines] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert (finished.duration, finished.peak_concurrency) == (3.0, 2)
    # What a request waited for room is not its latency.
    assert {round(timeline.ttft, 6) for timeline in finished.timelines} == {0.5}


async def test_failures_are_written_down_and_make_room() -> None:
    finished = await measured(4, [0.0] * 4, max_concurrency=1, fail=lambda job: job.token_ids[-1] % 2 == 0)
    assert [timeline.failure for timeline in finished.timelines] == ["broken", "", "broken", ""]
    assert summarize(finished.timelines, finished.duration).failures == {"broken": 2}


async def test_a_run_that_is_cancelled_ends_its_requests() -> None:
    clock = VirtualClock()
    target = SteadyTarget(clock)
    run = asyncio.ensure_future(Run(target, clock).measure([Job(max_tokens=6)] * 3, [0.0] * 3))
    await asyncio.sleep(0.01)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert target.closed == 3
