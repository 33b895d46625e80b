"""Sends requests when they are due and writes down when answers arrive.

Time comes from a clock that is given. Knows nothing about what answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from enginewire.backend.bench.timeline import Failed, Piece, Timeline
from enginewire.backend.bench.workload import Job


class Clock(Protocol):
    """Time in seconds, from any zero."""

    def now(self) -> float:
        """The time."""
        ...

    async def sleep_until(self, moment: float) -> None:
        """Return at `moment`, at once when it is past."""
        ...


class RealClock:
    """The machine's."""

    def now(self) -> float:
        """See Clock."""
        return time.perf_counter()

    async def sleep_until(self, moment: float) -> None:
        """See Clock."""
        await asyncio.sleep(max(0.0, moment - self.now()))


class Target(Protocol):
    """What is measured."""

    def answer(self, job: Job) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer as they arrive. Raises Failed. Closing it ends the request."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that is over. `duration` in seconds, from its start to the end of the last answer."""

    timelines: Sequence[Timeline]
    duration: float
    peak_concurrency: int


class Run:
    """One measurement."""

    def __init__(self, target: Target, clock: Clock, max_concurrency: int | None = None) -> None:
        self._target = target
        self._clock = clock
        self._free = asyncio.Semaphore(max_concurrency) if max_concurrency is not None else None
        self._running = 0
        self._peak = 0

    async def measure(self, jobs: Sequence[Job], arrivals: Sequence[float]) -> Finished:
        """Send every job at its arrival, in seconds after the start, or once there is room for it."""
        begin = self._clock.now()
        timelines: list[Timeline] = []
        async with asyncio.TaskGroup() as group:
            for job, arrival in zip(jobs, arrivals, strict=True):
                await self._clock.sleep_until(begin + arrival)
                if self._free is not None:
                    await self._free.acquire()
                timelines.append(Timeline(self._clock.now(), num_input_tokens=len(job.token_ids)))
                group.create_task(self._ask(job, timelines[-1]))
        return Finished(timelines, self._clock.now() - begin, self._peak)

    async def _ask(self, job: Job, timeline: Timeline) -> None:
        self._running += 1
        self._peak = max(self._peak, self._running)
        try:
            async with aclosing(self._target.answer(job)) as pieces:
                async for piece in pieces:
                    timeline.add(self._clock.now(), piece)
        except Failed as error:
            timeline.failure = str(error) or "failed"
        finally:
            timeline.finish()
            self._running -= 1
            if self._free is not None:
                self._free.release()
