"""An engine server of ours that is started again when it dies, on the same socket.

Holds when to start it again and when to give up. Knows nothing about what it serves: the requests in it
are lost, and whoever sent them sends them again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from enginewire.backend.processes.engine_output import EngineOutput
from enginewire.backend.processes.sidecar import Sidecar, SidecarDied, engine_on, private_folder

T = TypeVar("T")

DEATH_NOTICE_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often to start again. Times in seconds.

    A life shorter than `long_life` ends in a quick death; after `max_quick_deaths` in a row it is hopeless.
    """

    # More than it takes to find the one request that engines die of.
    max_quick_deaths: int = 5
    long_life: float = 60.0
    shortest_pause: float = 0.1
    longest_pause: float = 5.0

    def pause(self, num_quick_deaths: int) -> float:
        """How long to wait before the next start."""
        return min(self.longest_pause, self.shortest_pause * 2.0 ** max(0, num_quick_deaths - 1))


class Launch:
    """Lives of one engine server. Without `ready` from the work no second life is tried."""

    def __init__(
        self,
        arguments: Sequence[str],
        policy: RestartPolicy = RestartPolicy(),
        output: EngineOutput | None = None,
    ) -> None:
        self._was_ready = False
        self._arguments = arguments
        self._policy = policy
        self._output = output or EngineOutput(sys.stderr, arguments)
        self._num_quick_deaths = 0

    def ready(self) -> None:
        """The work has reached the engine."""
        self._was_ready = True
        self._output.loaded()

    async def run(self, work: Callable[[str], Coroutine[None, None, int]]) -> int:
        """The exit code of `work(target)`, which goes on while the engine server is started again.

        Raises SidecarDied when that is hopeless, and for a death that may be why the work has failed.
        """
        with private_folder() as folder:
            socket = folder / "engine.sock"
            working = asyncio.create_task(work(f"unix:{socket}"))
            try:
                while True:
                    async with engine_on(socket, self._arguments, self._output) as engine:
                        ended = await self._live(engine, working)
                    if isinstance(ended, int):
                        return ended
                    await asyncio.wait([working], timeout=self._policy.pause(self._num_quick_deaths))
                    if working.done():
                        if working.result():
                            raise ended
                        return 0
            finally:
                await _end(working)

    async def _live(self, engine: Sidecar, working: asyncio.Task[int]) -> int | SidecarDied:
        """The exit code of the work, or the death of an engine that may be started again."""
        began = time.monotonic()
        try:
            exit_code = await engine.unless_it_dies(_result_of(working))
            if exit_code:
                # The engine's death is noticed on its sockets first; the better reason may just be coming.
                await engine.unless_it_dies(asyncio.sleep(DEATH_NOTICE_SECONDS))
            return exit_code
        except SidecarDied as death:
            if working.done():
                raise
            self._count(death, time.monotonic() - began)
            return death
        except asyncio.CancelledError:
            # First the requests end, then the engine.
            await _end(working)
            raise

    def _count(self, death: SidecarDied, seconds: float) -> None:
        """Raises `death`, or one that says how many came before, when there is no use in another start."""
        if not self._was_ready:
            raise death
        self._num_quick_deaths = self._num_quick_deaths + 1 if seconds < self._policy.long_life else 0
        if self._num_quick_deaths >= self._policy.max_quick_deaths:
            raise death.as_last_of(self._num_quick_deaths) from death
        self._output.note(f"{str(death).splitlines()[0].rstrip(':')}; it is started again")


async def _result_of(working: asyncio.Task[T]) -> T:
    """Cancelling this leaves the task alone."""
    return await asyncio.shield(working)


async def _end(task: asyncio.Task[T]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
