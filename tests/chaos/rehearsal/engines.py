"""Two engines behind cables, and what can happen to the first one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tests.chaos.rehearsal.cable import Cable
from tests.chaos.rehearsal.servers import MOCKER, OPEN, load_of

ENGINE_PORT: Final = 50051
BLINK_SECONDS: Final = 2.0

Fault = Callable[["Engines"], Awaitable[None]]


class Engines:
    """Two engine servers at the far ends of two cables. The first one is the one that things happen to."""

    def __init__(self, cables: Sequence[Cable]) -> None:
        self.cables = cables
        self.targets = [f"{cable.far}:{ENGINE_PORT}" for cable in cables]
        self._processes: list[asyncio.subprocess.Process | None] = [None, None]
        self._is_bad: asyncio.Task[None] | None = None

    async def start(self, number: int) -> None:
        """A new life of one of them."""
        cable = self.cables[number]
        argv = [sys.executable, "-m", "enginewire.server", *MOCKER, *OPEN]
        command = cable.at_the_far_end([*argv, "--host", cable.far, "--port", str(ENGINE_PORT)])
        self._processes[number] = await asyncio.create_subprocess_exec(*command)
        await load_of(self.targets[number])

    async def kill(self, number: int) -> None:
        """It ends where it is."""
        process = self._processes[number]
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def lose_power(self) -> None:
        """The first one's machine: nobody says goodbye, and what comes back knows of no connection."""
        self.cables[0].pull()
        await self.kill(0)
        self.cables[0].__exit__(None, None, None)
        await asyncio.sleep(BLINK_SECONDS)
        self.cables[0].__enter__()
        await self.start(0)

    async def blink(self) -> None:
        """Silence that is shorter than what anybody should notice."""
        self.cables[0].silence()
        await asyncio.sleep(BLINK_SECONDS)
        self.cables[0].heal()

    async def lose_bursts(self) -> None:
        """From now on, until `heal`."""
        self._is_bad = asyncio.create_task(self.cables[0].be_bad())

    async def heal(self) -> None:
        """As it was."""
        if self._is_bad is not None:
            self._is_bad.cancel()
            await asyncio.gather(self._is_bad, return_exceptions=True)
            self._is_bad = None
        self.cables[0].heal()


def at_once(strike: Callable[[Cable], None]) -> Fault:
    """What takes no time."""

    async def fault(engines: Engines) -> None:
        strike(engines.cables[0])

    return fault


FAULTS: Final[dict[str, Fault]] = {
    "pulled": at_once(Cable.pull),
    "pulled at the engine": at_once(Cable.pull_far),
    "silent": at_once(Cable.silence),
    "silent from the engine": at_once(Cable.silence_far),
    "silent to the engine": at_once(Cable.silence_near),
    "power lost": Engines.lose_power,
    "blinks for 2 s": Engines.blink,
    "loses a third in bursts": Engines.lose_bursts,
    "narrow, 128 kbit/s": at_once(partial(Cable.narrow, kilobits=128)),
}
