"""llama.cpp's server, and ours in front of it. Outside the default run: for `make llama-test`."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.repository import ROOT
from tests.vllm_engine.live.conftest import Server, Start, starting, torch  # noqa: F401  # a fixture

SLOTS = 4
PACKAGED = f"{ROOT}/.venv-llama/bin/python {ROOT}/.ci/llama_server.py"


class Llama:
    """llama.cpp's server as a process, and ours."""

    def __init__(self, begin: Start, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        gguf, slots = os.environ["ENGINEWIRE_GGUF"], str(SLOTS)
        if binary := os.environ.get("LLAMA_SERVER"):
            argv = [*shlex.split(binary), "-m", gguf, "--port", port, "-np", slots, "-c", str(1024 * SLOTS)]
        else:
            argv = [*shlex.split(PACKAGED), gguf, port, slots]
        with log.open("w") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)
        self.server = begin("--upstream", f"http://127.0.0.1:{port}", "builtin:demo")
        self.server.wait_ready()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def llama() -> Iterator[Callable[[], Llama]]:
    """`llama()` starts another one; none outlives the tests."""
    with starting() as start, contextlib.ExitStack() as stack:

        def begin() -> Llama:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ew-"))
            made = Llama(start, Path(folder) / "log")
            stack.callback(made.end)
            return made

        yield begin


@pytest.fixture(scope="session")
def front(llama: Callable[[], Llama]) -> Server:
    """The demo model as a GGUF file. For tests that leave it as it is."""
    return llama().server
