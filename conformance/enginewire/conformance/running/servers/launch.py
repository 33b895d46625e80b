"""Starts servers of the implementation under test and makes sure that nothing of them is left.

The command is the user's own, with `{port}` or `{socket}` where the address belongs. Each server is a
process group of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shlex
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from enginewire.conformance.session.run_options import READY_SECONDS
from enginewire.conformance.session.session import Unreachable
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.violation import Violation

POLL_SECONDS: Final = 0.05
STOP_SECONDS: Final = 3.0
"""For an end that nobody judges. A drain with a long grace that a check began would take longer."""
CONNECT_SECONDS: Final = 1.0
TOGETHER: Final = 4
QUICK_START_SECONDS: Final = 5.0
LAST_LINES: Final = 3
"""Of a server's output, for a human who wants to know why it ended."""


class Process:
    """A server program under test."""

    def __init__(self, process: asyncio.subprocess.Process, connection: Connection, log: Path) -> None:
        self.target = connection.target
        self.log = log
        self._connection = connection
        self._process = process

    @property
    def group(self) -> int:
        """Its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, as a supervisor would."""
        self._process.send_signal(number)

    async def ended(self, within: float) -> int:
        """The exit code; TimeoutError when the process runs on."""
        return await asyncio.wait_for(self._process.wait(), within)

    async def ready(self, within: float) -> None:
        """Wait until it says who it is. Raises Unreachable when it ends or takes longer."""
        deadline = time.monotonic() + within
        async with self._connection.channel() as channel:
            client = Client(channel, metadata=self._connection.metadata, timeout=CONNECT_SECONDS)
            while not await _answers(client):
                if self.exit_code is not None:
                    raise Unreachable(f"the server ended with {self.exit_code}: {self.last_line()}")
                if time.monotonic() > deadline:
                    raise Unreachable(f"the server was not ready within {within:.0f} s: {self.last_line()}")
                await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL for whatever of its group is left."""
        if self.exit_code is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await self.ended(STOP_SECONDS)
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """End the whole group now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)

    def output(self) -> str:
        """What it printed so far."""
        return self.log.read_text(errors="replace")

    def last_lines(self, most: int = LAST_LINES) -> list[str]:
        """The last lines it printed, empty ones left out."""
        return [line.strip() for line in self.output().split("\n") if line.strip()][-most:]

    def last_line(self) -> str:
        """The last line it printed."""
        return next(iter(self.last_lines(1)), "it printed nothing")


@dataclass
class CommandLauncher:
    """Runs the user's command; `ready_seconds` is how long loading may take.

    `connection`: how to reach what it starts, whatever its address.
    """

    command: str
    ready_seconds: float = READY_SECONDS
    connection: Connection = field(default_factory=lambda: Connection(target=""))

    def __post_init__(self) -> None:
        if "{port}" not in self.command and "{socket}" not in self.command:
            raise ValueError("the command needs {port} or {socket} where the address belongs")
        try:
            shlex.split(self.command)
        except ValueError as mistake:
            raise ValueError(f"the command cannot be read: {mistake}") from None
        self._temporary = tempfile.TemporaryDirectory(prefix="enginewire-conformance-")
        self._folder = Path(self._temporary.name)
        self._started: list[Process] = []
        self._numbers = itertools.count()
        self._slowest_start = 0.0

    @property
    def at_a_time(self) -> int:
        """What takes long to start may need much of a device."""
        return TOGETHER if self._slowest_start < QUICK_START_SECONDS else 1

    async def launch(self) -> Process:
        """A server that serves. Raises Unreachable."""
        started = time.monotonic()
        process = await self.spawn()
        await process.ready(self.ready_seconds)
        self._slowest_start = max(self._slowest_start, time.monotonic() - started)
        return process

    async def spawn(self, target: str = "", extra: str = "") -> Process:
        """Start the program without waiting; at `target` or a free address, with `extra` arguments.

        Raises Unreachable when there is no such program.
        """
        target = target or self.free_target()
        address = target.removeprefix("unix:").rpartition(":")[2]
        command = f"{self.command} {extra}".replace("{port}", address).replace("{socket}", address)
        log = self._folder / f"{next(self._numbers)}.log"
        program, *arguments = shlex.split(command)
        with log.open("wb") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    program, *arguments, stdout=output, stderr=output, start_new_session=True
                )
            except OSError as error:
                raise Unreachable(f"{program} cannot be started: {error.strerror}") from None
        self._started.append(Process(process, self.connection.at(target), log))
        return self._started[-1]

    def free_target(self) -> str:
        """An address that nobody uses."""
        if "{socket}" in self.command:
            return f"unix:{self._folder / f'{next(self._numbers)}.sock'}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"

    def lines_with(self, word: str) -> list[str]:
        """The lines that have the word, of everything that was started."""
        lines = (line for process in self._started for line in process.output().splitlines())
        return [line.strip() for line in lines if word in line]

    def kill(self) -> None:
        """End everything that was started, without waiting for its end."""
        for process in self._started:
            process.kill()

    async def close(self) -> None:
        """Nothing that was started is left."""
        self.kill()
        await asyncio.gather(*(process.stop() for process in self._started))
        self._temporary.cleanup()


async def _answers(client: Client) -> bool:
    try:
        await client.info()
    except Violation:
        return False
    return True
