"""Engine processes behind links that can go wrong, on TCP with certificates that change.

Signals go through pidfds: none can reach another process that has got the number of one that ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from enginewire.calling.trust import Trust
from enginewire.tls.target import TargetTls
from tests.certificates import Authority
from tests.chaos.link import Link

LISTENING = re.compile(rb"listening on ([\w.:]+)")
MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "2")
HOST = "localhost"


class Engine:
    """An engine process, the next one after it, and the link through which both are reached."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.link = Link()
        self._command = [sys.executable, "-m", "enginewire.server", *arguments, "--port", "0"]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._pidfd: int | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process that lives now or lived last."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """False when it has ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Return when a new process listens; it may not be ready yet."""
        self._process = await asyncio.create_subprocess_exec(*self._command, stderr=asyncio.subprocess.PIPE)
        self._pidfd = os.pidfd_open(self._process.pid)
        output = self._process.stderr
        assert output is not None
        with self._log.open("ab", buffering=0) as log:
            async for line in output:
                log.write(line)
                if found := LISTENING.search(line):
                    self.link.upstream = found[1].decode()
                    break
            else:
                raise AssertionError(f"no engine: {self._log.read_text()[-2000:]}")
        self._reading = asyncio.create_task(self._write_down(output))

    async def _write_down(self, output: asyncio.StreamReader) -> None:
        with self._log.open("ab", buffering=0) as log:
            while data := await output.read(4096):
                log.write(data)

    def signal(self, number: signal.Signals) -> None:
        """To this very process."""
        assert self._pidfd is not None
        signal.pidfd_send_signal(self._pidfd, number)

    async def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its end; the exit code."""
        assert self._process is not None
        self.signal(number)
        code = await self._process.wait()
        if self._reading is not None:
            await self._reading
        assert self._pidfd is not None
        os.close(self._pidfd)
        return code

    async def leave_nothing(self) -> None:
        """Killed, if it lives."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                await self.end(signal.SIGKILL)


class Certificates:
    """What the engines show, and how callers trust it."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        # One file for both is replaced in one moment, whatever else the machine has to do.
        self._shown = folder / "shown.pem"
        self.num_rotations = -1
        self.rotate()
        self.options = [f"--ssl-certfile={self._shown}", f"--ssl-keyfile={self._shown}"]
        # Loopback, and chaos tries no keys: whoever reaches the port may call.
        self.trust = Trust(tls=TargetTls(authorities=self._authority.file, name=HOST))

    def rotate(self) -> None:
        """The next handshake is shown another certificate of the same authority."""
        new = self._authority.signed("new", HOST)
        both = self._shown.with_suffix(".new")
        both.write_bytes(new.key.read_bytes() + new.certificate.read_bytes())
        os.replace(both, self._shown)
        self.num_rotations += 1


@contextlib.asynccontextmanager
async def fleet(folder: Path, count: int, arguments: Sequence[str] = MOCKER) -> AsyncIterator[list[Engine]]:
    """`count` engine processes behind links of their own; none is left behind."""
    engines = [Engine(arguments, folder / f"engine-{number}.log") for number in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.link)
            stack.push_async_callback(engine.leave_nothing)
        await asyncio.gather(*(engine.start() for engine in engines))
        yield engines
