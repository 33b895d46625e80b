"""Programs of ours that run beside this one: started here, watched, and never left behind.

Holds their life: start, progress on stderr, early death, drain, kill. Knows nothing about what they
serve.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from enginewire.backend.processes.engine_output import EngineOutput

T = TypeVar("T")

Show = Callable[[str], str | None]
"""Takes a piece of what a program prints; may return how people should read it in its last lines."""

# What a sidecar needs to end once its last request is gone, with a margin for a busy machine.
STOP_SECONDS: Final = 15.0
# Servers that we start listen where nobody but this user can call them: keys are for those in front.
KEYS: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("ENGINEWIRE_", "ENGINEWIRE_BACKEND_")
    for name in ("API_KEY", "API_KEY_FILE")
)
LAST_LINES: Final = 8
LAST_CHARACTERS: Final = 8192
CHUNK_BYTES: Final = 4096
# How long to read what a dead process has printed, should somebody else hold its output.
OUTPUT_SECONDS: Final = 1.0


class SidecarDied(Exception):
    """A sidecar ended by itself; the message has its exit code and its last lines."""

    def __init__(self, name: str, exit_code: int, last_lines: Sequence[str]) -> None:
        how = f"exit code {exit_code}" if exit_code >= 0 else f"signal {signal.Signals(-exit_code).name}"
        tail = "".join(f"\n  {line}" for line in last_lines)
        super().__init__(f"{name} ended with {how}{tail and ', its last lines:'}{tail}")
        self.name = name
        self.exit_code = exit_code
        self.last_lines = last_lines

    def as_last_of(self, count: int) -> SidecarDied:
        """The same after as many deaths in a row."""
        return SidecarDied(
            f"{self.name}, given up at its death number {count} in a row,", self.exit_code, self.last_lines
        )


class Sidecar:
    """A running `python -m MODULE`. Use `sidecar` to get one."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        show: Show,
    ) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._show = show
        self._is_over = False
        self._last: deque[str] = deque(maxlen=LAST_CHARACTERS)
        self._output = asyncio.create_task(self._pass(output), name=f"output of {name}")

    @property
    def is_running(self) -> bool:
        """False once the process has ended."""
        return self._process.returncode is None

    async def unless_it_dies(self, work: Coroutine[None, None, T]) -> T:
        """The result of `work`; SidecarDied when the process ends before that."""
        working = asyncio.create_task(work)
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            await self._end_output()
            raise SidecarDied(self.name, ended.result(), "".join(self._last).splitlines()[-LAST_LINES:])
        finally:
            for task in (working, ended):
                task.cancel()
            await asyncio.gather(working, ended, return_exceptions=True)

    async def stop(self, timeout: float = STOP_SECONDS) -> int:
        """Drain it, and kill it after `timeout` seconds or when this is cancelled; the exit code."""
        try:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._process.wait()
        finally:
            self._signal(signal.SIGKILL)
            exit_code = await self._process.wait()
            await self._end_output()
        return exit_code

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _end_output(self) -> None:
        """What it has printed, all of it. Children that outlive it go with it: they may hold what it held."""
        # Once: later its number may be another process's.
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await asyncio.wait([self._output], timeout=OUTPUT_SECONDS)
        self._output.cancel()

    async def _pass(self, output: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while chunk := await output.read(CHUNK_BYTES):
            text = decoder.decode(chunk)
            readable = self._show(text)
            self._last.extend(text if readable is None else readable)


def show_on_stderr(text: str) -> None:
    """Pass a sidecar's output on. A closed stderr shall not end anything."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


@contextlib.asynccontextmanager
async def sidecar(
    module: str,
    arguments: Sequence[str],
    *,
    name: str,
    show: Show = show_on_stderr,
    stop_timeout: float = STOP_SECONDS,
) -> AsyncIterator[Sidecar]:
    """`python -m MODULE ARGUMENTS`, drained at the end of the context.

    A session of its own keeps a terminal's Ctrl-C away from it, so that we can end our requests first.
    Start it on the main thread: the kernel kills it when the thread that started it ends.
    """
    async with _pipe() as (output, write_end):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "enginewire.backend.processes.parent_death", str(os.getpid()), module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
        write_end.close()
        running = Sidecar(name, process, output, show)
        try:
            yield running
        finally:
            await running.stop(stop_timeout)


def environment() -> dict[str, str]:
    """This process's, without the keys that servers ask for."""
    return {name: value for name, value in os.environ.items() if name not in KEYS}


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """Of our own: asyncio takes a process for alive as long as anybody holds a pipe of asyncio's to it."""
    reader = asyncio.StreamReader()
    read_end, write_end = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
    )
    try:
        with os.fdopen(write_end, "wb") as to_write:
            yield reader, to_write
    finally:
        transport.close()


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="enginewire-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def engine_sidecar(arguments: Sequence[str]) -> AsyncIterator[tuple[Sidecar, str]]:
    """An engine server on a socket of its own, and that socket as a gRPC target. Perhaps not ready yet."""
    with private_folder() as folder:
        socket = folder / "engine.sock"
        async with engine_on(socket, arguments) as engine:
            yield engine, f"unix:{socket}"


@contextlib.asynccontextmanager
async def engine_on(
    socket: Path, arguments: Sequence[str], output: EngineOutput | None = None
) -> AsyncIterator[Sidecar]:
    """An engine server on that socket, perhaps not ready yet."""
    output = output or EngineOutput(sys.stderr, arguments)
    options = (*output.log_options, *arguments, "--uds", str(socket))
    async with (
        output.shown(),
        sidecar("enginewire.server", options, name="the engine server", show=output.show) as engine,
    ):
        yield engine
