"""Processes for tests: started on request, never left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.end_to_end.processes import Client, EngineProcess
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a name short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="ew-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def launch(folder: Path) -> Iterator[Callable[..., EngineProcess]]:
    """`launch(*arguments)` starts an engine server on `folder/engine.sock` unless it is told where."""
    started: list[EngineProcess] = []

    def start(*arguments: str, **given: object) -> EngineProcess:
        has_address = bool({"--uds", "--port"} & set(arguments))
        address = [] if has_address else ["--uds", str(folder / "engine.sock")]
        started.append(EngineProcess(folder, *address, *arguments, **given))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture(scope="session")
def demo_target() -> Iterator[str]:
    """Where an engine server with the demo model listens; after all tests it drains and exits with 0."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        address = ["--uds", f"{folder}/engine.sock", "--log-level", "error"]
        process = subprocess.Popen([sys.executable, "-m", "enginewire.server", "builtin:demo", *address])
        yield f"unix:{folder}/engine.sock"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Client]]:
    """`connect(target)` is a client that is closed with the test."""
    clients: list[Client] = []

    def open_client(target: str, credentials: grpc.ChannelCredentials | None = None) -> Client:
        clients.append(Client(target, credentials))
        return clients[-1]

    yield open_client
    for client in clients:
        await client.channel.close()
