"""Dynamo's own frontend, workers of ours, and engines behind them, all of them processes on this machine.

Outside the default run: `make dynamo-test` has an environment with Dynamo.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginewire import v1 as pb
from tests.backend.our_processes import command, load_of, until

START_SECONDS = 120.0
PATIENCE_SECONDS = 120.0
GRACE_SECONDS = 1.0
NAMED = ("--served-model-name", "builtin:demo")
TORCH = ("--engine", "torch", "--dtype", "float32")
ENGINE = [sys.executable, "-m", "enginewire.server"]
WORKER = [sys.executable, "-m", "enginewire", "dynamo"]
FRONTEND = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]


class Program:
    """A process with a log, which is shown when a test fails."""

    def __init__(self, folder: Path, argv: list[str], environment: Mapping[str, str]) -> None:
        self._log = (folder / f"{len(list(folder.glob('*.log')))}.log").open("w+b")
        self.process = subprocess.Popen(argv, stdout=self._log, stderr=self._log, env=environment)

    def log(self) -> str:
        """What it has written."""
        return Path(self._log.name).read_text(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something, as long as the process lives."""

        def is_so() -> bool:
            assert self.process.poll() is None, self.log()[-8000:]
            return condition()

        until(is_so, START_SECONDS)

    def end(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self._log.close()


class Engine(Program):
    """An engine server on a socket."""

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        path: Path | None = None,
    ) -> None:
        path = path or folder / f"{len(list(folder.glob('*.log')))}.sock"
        self.target = f"unix:{path}"
        super().__init__(folder, [*ENGINE, *arguments, "--uds", str(path)], environment)
        self.until(lambda: load_of(self.target).state == pb.ENGINE_STATE_READY)

    def load(self) -> pb.Load:
        """GetLoad."""
        return load_of(self.target)


class Deployment:
    """A frontend, and whatever a test puts behind it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.environment = {
            **os.environ,
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_SELF_HOST_METADATA": "0",
            "DYN_LOG": "warn",
        }
        argv = [*FRONTEND, "--http-port", str(self.port), "--migration-limit", "3", *arguments]
        self.programs: list[Program] = [Program(folder, argv, self.environment)]

    @property
    def url(self) -> str:
        """Of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def engine(self, *arguments: str) -> Engine:
        """An engine that is ready."""
        engine = Engine(self.folder, arguments or TORCH, self.environment)
        self.programs.append(engine)
        return engine

    def worker(self, engine: Engine, *arguments: str) -> Program:
        """A worker that the frontend sends requests to."""
        known = set(self.instances())
        argv = [*WORKER, "--target", engine.target, "--grace-period", str(GRACE_SECONDS), *NAMED, *arguments]
        worker = Program(self.folder, argv, self.environment)
        self.programs.append(worker)
        worker.until(lambda: "serving" in worker.log())
        # That of a worker which was killed goes away by itself.
        assert set(self.instances()) - known
        worker.until(lambda: answers(self.url))
        return worker

    def again(self, lost: Engine, *arguments: str) -> Engine:
        """An engine at the place of one that has ended."""
        lost.process.wait(PATIENCE_SECONDS)
        path = Path(lost.target.removeprefix("unix:"))
        path.unlink(missing_ok=True)
        engine = Engine(self.folder, arguments, self.environment, path)
        self.programs.append(engine)
        return engine

    def instances(self) -> list[str]:
        """The workers that frontends can find."""
        return [path.name for path in (self.folder / "discovery").glob("v1/instances/*backend*generate*")]

    def end(self) -> None:
        """Leave nothing behind."""
        for program in self.programs:
            program.end()


def answers(url: str) -> bool:
    """It knows the model and reaches a worker."""
    with contextlib.suppress(httpx2.TransportError):
        return complete(url, prompt="Hello", max_tokens=1).status_code == 200
    return False


def complete(url: str, **asked: Any) -> httpx2.Response:
    """The whole answer of `/completions`, or the error."""
    return post(f"{url}/completions", {"model": "builtin:demo", "temperature": 0, **asked})


def chat(url: str, content: str, **asked: Any) -> httpx2.Response:
    """The whole answer of `/chat/completions`, or the error."""
    messages = [{"role": "user", "content": content}]
    return post(f"{url}/chat/completions", {"model": "builtin:demo", "messages": messages, **asked})


def post(url: str, asked: Mapping[str, Any]) -> httpx2.Response:
    return httpx2.post(url, json=asked, timeout=PATIENCE_SECONDS)


def text_of(response: httpx2.Response) -> str:
    """Of the first choice."""
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


class Asked:
    """A request under way on a thread of its own."""

    def __init__(self, ask: Callable[[], httpx2.Response]) -> None:
        self.response: httpx2.Response | None = None
        self._ask = ask
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.response = self._ask()

    def wait(self) -> httpx2.Response:
        self._thread.join(PATIENCE_SECONDS)
        assert self.response is not None
        return self.response


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starting four processes takes its time on a busy machine."""
    for item in items:
        item.add_marker(pytest.mark.timeout(8 * START_SECONDS))


@contextlib.contextmanager
def deployed(*arguments: str) -> Iterator[Deployment]:
    """A frontend with these options; nothing of it is left at the end."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        deployment = Deployment(Path(folder), *arguments)
        try:
            yield deployment
        finally:
            deployment.end()


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """A frontend alone, for tests that end what is behind it."""
    with deployed() as made:
        yield made


@pytest.fixture(scope="session")
def shared() -> Iterator[Deployment]:
    """A frontend with one engine, for tests that leave it as it is."""
    with deployed() as made:
        made.worker(made.engine())
        yield made


@pytest.fixture(scope="session")
def engine(shared: Deployment) -> Engine:
    """The one behind `shared`."""
    return next(program for program in shared.programs if isinstance(program, Engine))


@pytest.fixture(scope="session")
def ours(shared: Deployment, engine: Engine) -> str:
    """The API of our own backend, with the same engine behind it."""
    port = free_port()
    argv = command(
        "serve", "--target", engine.target, "--http-port", str(port), "--uds", f"{shared.folder}/b.sock"
    )
    program = Program(shared.folder, argv, shared.environment)
    shared.programs.append(program)
    url = f"http://127.0.0.1:{port}/v1"
    program.until(lambda: answers(url))
    return url
