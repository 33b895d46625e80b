"""Servers inside this process, for proofs of the kit: started in milliseconds, nothing left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from enginewire.conformance.running.servers.launch import CommandLauncher, Process


class Served(Protocol):
    """The reference, a mutant, an adversary."""

    async def serve(self, target: str) -> grpc.aio.Server:
        """Listen; returns the running server."""

    async def shut_down(self, server: grpc.aio.Server) -> None:
        """Stop listening."""


class InProcess:
    """One running server."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._folder = tempfile.TemporaryDirectory(prefix="enginewire-kit-")
        self.target = f"unix:{Path(self._folder.name) / 'server.sock'}"

    async def start(self) -> InProcess:
        """Listen on a Unix socket of its own."""
        try:
            self._server = await self._served.serve(self.target)
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    async def stop(self) -> None:
        """End it."""
        await self._served.shut_down(self._server)
        self._folder.cleanup()


@dataclass
class InProcessLauncher:
    """Makes fresh servers of one kind; as processes too, for which it needs the command."""

    make: Callable[[], Served]
    command: str
    at_a_time: int = 1
    """They would take the time of this process from each other."""

    def __post_init__(self) -> None:
        self._programs = CommandLauncher(self.command)

    async def launch(self) -> InProcess:
        """A server that serves."""
        return await InProcess(self.make()).start()

    async def spawn(self, target: str = "", extra: str = "") -> Process:
        """The same server as a process."""
        return await self._programs.spawn(target, extra)

    async def close(self) -> None:
        """No process is left."""
        await self._programs.close()
