"""What the reference does as a program: listens, obeys signals, exits with a code."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.conformance.reference.lifecycle import Lifecycle

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class AddressError(Exception):
    """The server cannot listen at this address."""


class AddressInUse(AddressError):
    """Somebody listens there."""


class Signals(Lifecycle):
    """From the first signal to the exit code."""

    def __init__(self) -> None:
        super().__init__()
        self._signalled = 0
        self._stop = asyncio.Event()

    def obey_signals(self) -> None:
        """From now on a signal ends the server, a second one sooner."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.signalled)

    def signalled(self) -> None:
        """A signal arrived."""
        self._signalled += 1
        self._stop.set()
        if self._signalled > 1:
            self.hurry()

    def hurry(self) -> None:
        """Cut a drain short."""
        self.begin_drain(pb.DrainRequest(deadline=Duration()))

    async def until_signalled(self) -> int:
        """Serve until a signal, drain, clean up; returns the exit code."""
        await self._stop.wait()
        await self.finish_requests()
        await self.cleanup(pb.CleanupRequest(abort_in_flight=True))
        return 0

    async def finish_requests(self) -> None:
        """Drain within the shutdown timeout."""
        async for _ in self.drain(pb.DrainRequest()):
            pass

    def check_address(self, target: str) -> None:
        """Raise AddressError for an address that is in use or cannot be used."""
        # gRPC takes the socket file of a live server away, and says too little about the rest.
        path = target.removeprefix("unix:")
        if path == target:
            host, _, port = target.rpartition(":")
            if not (port.isdigit() and int(port) < 65536):
                raise AddressError(f"cannot listen at {target}: {port} is no port")
            self.check_unused(socket.AF_INET, (host, int(port)), target)
        elif not Path(path).parent.is_dir():
            raise AddressError(f"cannot listen at {target}: {Path(path).parent} is no folder")
        elif Path(path).exists():
            self.check_unused(socket.AF_UNIX, path, target)

    def check_unused(self, family: int, address: str | tuple[str, int], target: str) -> None:
        """Raise AddressInUse when somebody answers."""
        with socket.socket(family) as probe:
            if probe.connect_ex(address) == 0:
                raise AddressInUse(f"cannot listen at {target}: the address is in use")

    def cannot_listen(self, mistake: AddressError) -> int:
        """Say why; returns the exit code."""
        print(f"reference: {mistake}", file=sys.stderr)
        return 1
