"""Engines that have trouble with starting."""

from __future__ import annotations

import asyncio
import contextlib
import time

from enginewire import v1 as pb
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.mocker.engine import MockerEngine


class StartsNever(MockerEngine):
    """Waits for ever."""

    def __init__(self, options: ServerOptions) -> None:
        super().__init__()

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Never returns."""
        await asyncio.Event().wait()
        raise AssertionError


class BlocksAThread(StartsNever):
    """Loads in a thread that cannot be interrupted."""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Returns after a minute."""
        await asyncio.to_thread(time.sleep, 60)
        return await MockerEngine.start(self, worker_id)


class GoesOnStarting(StartsNever):
    """Takes no notice of being cancelled, as the import of a large library."""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Never returns."""
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


class NeverCleansUp(StartsNever):
    """Holds on to what it has."""

    async def cleanup(self) -> None:
        """Never returns."""
        await asyncio.Event().wait()


class FailsToStart(StartsNever):
    """Finds nothing to load."""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Never returns."""
        raise FileNotFoundError("no weights there")
