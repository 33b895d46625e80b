"""Backends under test, each with a scripted engine behind it: started, connected to, ended.

Knows two ways to start one, by the user's command and inside this process; nothing about checks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.run_options import RunOptions
from enginewire.conformance.client_side.stage.engine import ScriptedEngine
from enginewire.conformance.client_side.stage.facts import PLAIN, Facts
from enginewire.conformance.running.servers.in_process import InProcess, Served
from enginewire.conformance.running.servers.launch import CommandLauncher, Process
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.session.session import Server, Unreachable
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import NARROW, Connection
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.tasks import stop

POLL_SECONDS: Final = 0.02
SCRIPTED: Final = "127.0.0.1:0"

T = TypeVar("T")


class Starter(Protocol):
    """A way to start backends."""

    async def start(self, engine: str) -> Server:
        """A backend of the engine at that address. Raises Unreachable when it does not listen."""

    async def close(self) -> None:
        """Nothing that was started is left."""


class CommandStarter:
    """Runs the user's command: `{target}` is the engine, `{listen}`, `{port}` or `{socket}` the backend."""

    def __init__(self, command: str, ready_seconds: float) -> None:
        if "{target}" not in command:
            raise ValueError("the command needs {target} where the engine's address belongs")
        self._command = command.replace("{listen}", "127.0.0.1:{port}")
        if "{port}" not in self._command and "{socket}" not in self._command:
            raise ValueError("the command needs {listen}, {port} or {socket} where its own address belongs")
        self._ready_seconds = ready_seconds
        self._launchers: list[CommandLauncher] = []

    async def start(self, engine: str) -> Process:
        """See Starter."""
        launcher = CommandLauncher(self._command.replace("{target}", engine))
        self._launchers.append(launcher)
        process = await launcher.spawn()
        await _listening(process, self._ready_seconds)
        return process

    def kill(self) -> None:
        """End everything that was started, without waiting for its end."""
        for launcher in self._launchers:
            launcher.kill()

    async def close(self) -> None:
        """See Starter."""
        for launcher in self._launchers:
            await launcher.close()


@dataclass
class InProcessStarter:
    """Makes backends in this process."""

    make: Callable[[str], Served]

    async def start(self, engine: str) -> InProcess:
        """See Starter."""
        served = self.make(engine)
        try:
            return await InProcess(served).start()
        except Failed as reason:
            await served.shut_down(None)  # type: ignore[arg-type]  # it never listened
            raise Unreachable(str(reason)) from None

    async def close(self) -> None:
        """See Starter."""


class RunningBackend:
    """A backend that listens."""

    def __init__(self, engine: ScriptedEngine, server: Server, scale: float) -> None:
        self.engine = engine
        self.bounds = Bounds(scale=scale)
        self._server = server
        to_it = Connection(target=server.target)
        self._channel, self._narrow = to_it.channel(), to_it.channel(*NARROW)

    def client(self, *, narrow: bool = False) -> Client:
        """A client of the backend, recording for itself. A narrow one gets no more than it reads."""
        return Client(self._narrow if narrow else self._channel, timeout=2 * self.bounds.answer)

    def measure(self, exchanges: Sequence[Exchange]) -> None:
        """Take the longest of these answers as what one takes here."""
        ended = [exchange for exchange in exchanges if exchange.ended_at]
        longest = max((e.ended_at - e.started_at for e in ended if e.ended_at), default=0.0)
        self.bounds = replace(self.bounds, ttft=longest)

    async def stop(self) -> None:
        """End the backend, then its engine."""
        await self._channel.close()
        await self._narrow.close()
        await self._server.stop()
        await self.engine.stop()


class RunningBackends:
    """The backends of one run."""

    def __init__(
        self,
        starter: Starter,
        time_scale: float,
        *,
        multiplexed: bool = False,
        options: RunOptions | None = None,
    ) -> None:
        self.options = options or RunOptions()
        self._made: dict[str, asyncio.Task[Any]] = {}
        self._starter = starter
        self._scale = time_scale
        self._multiplexed = multiplexed
        self._shared: dict[Facts, asyncio.Task[RunningBackend]] = {}

    def engine(self, facts: Facts = PLAIN) -> ScriptedEngine:
        """See Backends."""
        return ScriptedEngine(replace(facts, multiplexed=self._multiplexed))

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """See Backends."""
        if name not in self._made:
            self._made[name] = asyncio.ensure_future(make())
        made: T = await asyncio.shield(self._made[name])
        return made

    async def shared(self, facts: Facts = PLAIN) -> RunningBackend:
        """See Backends. Raises Unreachable."""
        if facts not in self._shared:
            self._shared[facts] = asyncio.create_task(self.fresh(self.engine(facts)))
        return await asyncio.shield(self._shared[facts])

    async def fresh(self, engine: ScriptedEngine) -> RunningBackend:
        """See Backends."""
        await engine.start(SCRIPTED)
        try:
            server = await self._starter.start(engine.target)
        except BaseException:
            await engine.stop()
            raise
        return RunningBackend(engine, server, self._scale)

    async def close(self) -> None:
        """Nothing is left running."""
        await stop(list(self._made.values()))
        started = await asyncio.gather(*self._shared.values(), return_exceptions=True)
        for backend in started:
            if isinstance(backend, RunningBackend):
                await backend.stop()
        await self._starter.close()


async def _listening(process: Process, within: float) -> None:
    """Wait until it can be connected to. Raises Unreachable when it ends or takes longer."""
    deadline = time.monotonic() + within
    while not await _connects(process.target):
        if process.exit_code is not None:
            raise Unreachable(f"the backend ended with {process.exit_code}: {process.last_line()}")
        if time.monotonic() > deadline:
            await process.stop()
            raise Unreachable(f"the backend did not listen within {within:.0f} s: {process.last_line()}")
        await asyncio.sleep(POLL_SECONDS)


async def _connects(target: str) -> bool:
    try:
        if target.startswith("unix:"):
            _, writer = await asyncio.open_unix_connection(str(Path(target.removeprefix("unix:"))))
        else:
            host, _, port = target.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True
