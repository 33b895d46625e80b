"""The servers that are fuzzed: an engine and a backend with all its faces, as processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import grpc
import psutil

from enginewire import v1 as pb
from tests.fuzz.messages import CONTEXT
from tests.patience import PATIENCE_SECONDS

ENGINE = ("--engine", "mocker", "--port", "0", "--metrics-port", "0", "--max-model-len", str(CONTEXT))
FACES = ("--port", "0", "--http-port", "0", "--smg-port", "0", "--connect-timeout", "60")
ADDRESS = re.compile(r"(?:listening on |metrics at )(?:grpc://|http://)?([\d.]+:\d+)")
ALLOWED_GROWTH_MIB = 96.0
# gRPC opens a few of its own when it first needs them; a leak grows with the cases.
ALLOWED_DESCRIPTORS = 8


class Server:
    """One process, and where it listens once it is ready."""

    def __init__(self, log: Path, num_addresses: int, *argv: str) -> None:
        self.log = log
        self._argv = [sys.executable, "-m", *argv]
        self._num_addresses = num_addresses
        self.addresses: list[str] = []
        self.start()

    def start(self) -> None:
        """A new process."""
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(self._argv, stdout=output, stderr=output)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found := ADDRESS.findall(self.log.read_text())) < self._num_addresses:
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.is_alive, self.log.read_text()
            time.sleep(0.02)
        self.addresses = found

    @property
    def is_alive(self) -> bool:
        """False when it has ended."""
        return self.process.poll() is None

    def end(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()

    def size(self) -> tuple[int, float]:
        """Open descriptors, and MiB of memory."""
        process = psutil.Process(self.process.pid)
        return process.num_fds(), process.memory_info().rss / (1 << 20)


class Servers:
    """Everything, and channels to it. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.engine = Server(folder / "engine.log", 2, "enginewire.server", *ENGINE)
        grpc_address, self.metrics = sorted(self.engine.addresses, key=self._says_metrics)
        self.ending = Server(folder / "ending.log", 2, "enginewire.server", *ENGINE)
        target = ("--target", grpc_address)
        self.backend = Server(folder / "backend.log", 3, "enginewire.backend", "serve", *FACES, *target)
        backend_grpc, self.http, smg = self.backend.addresses
        self.targets = {"engine": grpc_address, "backend": backend_grpc, "smg": smg}
        self.channels = {name: grpc.insecure_channel(at) for name, at in self.targets.items()}
        self._dial_ending()

    def renew_ending(self) -> None:
        """Another engine in the place of the one that is drained or cleaned up by now."""
        self.channels["ending"].close()
        self.ending.end()
        self.ending.start()
        self._dial_ending()

    def _dial_ending(self) -> None:
        at = self.ending.log.read_text().partition("listening on ")[2].partition('"')[0]
        self.channels["ending"] = grpc.insecure_channel(at)

    def _says_metrics(self, address: str) -> bool:
        return f"metrics at http://{address}" in self.engine.log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for channel in self.channels.values():
            channel.close()
        for server in (self.backend, self.engine, self.ending):
            server.end()

    @property
    def are_alive(self) -> bool:
        """False when one has ended."""
        return all(server.is_alive for server in (self.engine, self.backend, self.ending))

    def sizes(self) -> dict[str, tuple[int, float]]:
        """By program: descriptors and MiB."""
        return {"engine": self.engine.size(), "backend": self.backend.size()}

    def is_idle(self) -> bool:
        """True when nothing of any request is left in the engine."""
        stub = pb.DiscoveryServiceStub(self.channels["engine"])
        load = stub.GetLoad(pb.GetLoadRequest(), timeout=PATIENCE_SECONDS).load
        return (load.running, load.waiting, load.kv_blocks_used) == (0, 0, 0)

    def leaks(self, before: dict[str, tuple[int, float]]) -> list[str]:
        """What did not come back to what it was, once everybody has left."""
        found = [] if self._comes_true(self.is_idle) else ["GetLoad is not back to zero"]
        for name, (descriptors, memory) in before.items():
            if not self._comes_true(
                lambda name=name, most=descriptors: self.sizes()[name][0] <= most + ALLOWED_DESCRIPTORS
            ):
                found.append(f"{name}: {descriptors} descriptors became {self.sizes()[name][0]}")
            if self.sizes()[name][1] > memory + ALLOWED_GROWTH_MIB:
                found.append(f"{name}: {memory:.0f} MiB became {self.sizes()[name][1]:.0f}")
        return found

    def _comes_true(self, condition: object) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True
