"""Servers with vLLM in them. Outside the default run: `make vllm-test` has an environment with vLLM."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from enginewire import v1 as pb
from tests.backend.our_processes import load_of, until

START_SECONDS = 900.0
"""vLLM takes half a minute on an idle machine, and minutes on a busy one."""
DRAIN_SECONDS = 300
"""Whoever drains on a busy machine has to finish what runs."""
SAME = ("--dtype", "float32", "--max-num-seqs", "4", "--shutdown-timeout", str(DRAIN_SECONDS))
VLLM = ("--engine", "vllm", *SAME, "--kv-cache-memory-bytes", "64MiB", "--engine-args=--enforce-eager")
TORCH = ("--engine", "torch", *SAME)


class Server:
    """An engine server as a process, and all that it has started."""

    def __init__(self, folder: Path, arguments: tuple[str, ...]) -> None:
        self.target = f"unix:{folder}/e.sock"
        self._log = (folder / "log").open("w+")
        argv = [sys.executable, "-m", "enginewire.server", *arguments, "--uds", f"{folder}/e.sock"]
        self.process = subprocess.Popen(argv, stdout=self._log, stderr=self._log, start_new_session=True)

    def wait_ready(self) -> None:
        """Until requests are accepted; fails with the log when the process ends before."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return load_of(self.target).state == pb.ENGINE_STATE_READY

        until(is_ready, START_SECONDS)

    def log(self) -> str:
        """What was written so far."""
        return Path(self._log.name).read_text()

    def family(self) -> list[psutil.Process]:
        """The process and all below it."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self) -> None:
        """Kill whatever is left."""
        if self.process.poll() is None:
            for process in self.family():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()


Start = Callable[..., Server]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Loading vLLM counts as a part of the first test that needs it."""
    for item in items:
        item.add_marker(pytest.mark.timeout(2 * START_SECONDS))


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """`start(*arguments)` begins to start a server; none is left at the end."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str) -> Server:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ew-"))
            server = Server(Path(folder), arguments)
            stack.callback(server.end)
            return server

        yield begin


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Servers that end with a module: an idle vLLM takes processors from the tests of the next one."""
    with starting() as begin:
        yield begin


@pytest.fixture(scope="session")
def vllm() -> Iterator[Server]:
    """The demo model in vLLM. For tests that leave it as it is."""
    with starting() as begin:
        server = begin(*VLLM)
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def torch() -> Iterator[Server]:
    """The demo model in the torch engine."""
    with starting() as begin:
        server = begin(*TORCH)
        server.wait_ready()
        yield server
