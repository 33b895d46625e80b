"""`enginewire-backend serve`: the faces of a backend that listen, from their start to their common end.

Knows nothing about what a face speaks.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from contextlib import AsyncExitStack
from typing import Protocol

from backend_client.config import ServeOptions
from backend_client.frontends.commands import EXIT_SIGNAL, received_signals
from backend_client.frontends.grpc_service import grpc_face
from backend_client.frontends.text_backend import TextBackend


class Face(Protocol):
    """Something that listens at `address`."""

    @property
    def address(self) -> str:
        """For people and programs that connect."""
        ...

    async def drain(self, timeout: float) -> None:
        """Accept nothing more, and end what still runs after `timeout` seconds."""
        ...


async def serve(backend: TextBackend, options: ServeOptions) -> int:
    """Serve until SIGTERM or Ctrl-C, then let running requests finish within the shutdown timeout.

    Returns 0, or 128 + signal when a second one ended that. Raises AddressError.
    """
    signals = received_signals()
    async with AsyncExitStack() as stack:
        faces: list[Face] = [await stack.enter_async_context(grpc_face(backend, options))]
        if options.http_port is not None:
            from backend_client.frontends.http_api.server import http_face

            faces.append(await stack.enter_async_context(http_face(backend, options)))
        if options.smg_port is not None:
            from backend_client.frontends.smg.server import smg_face

            faces.append(await stack.enter_async_context(smg_face(backend, options)))
        for face in faces:
            print(f"listening on {face.address}", file=sys.stderr, flush=True)
        # All of this stays: looking through it for garbage would only hold up an answer.
        gc.freeze()
        await signals.get()
        return await _drain(faces, options.shutdown_timeout, signals)


async def _drain(faces: list[Face], timeout: float, signals: asyncio.Queue[signal.Signals]) -> int:
    print("draining", file=sys.stderr, flush=True)
    drained = asyncio.create_task(_drain_all(faces, timeout))
    again = asyncio.create_task(signals.get())
    await asyncio.wait([drained, again], return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        drained.cancel()
        return EXIT_SIGNAL + again.result()
    again.cancel()
    await drained
    return 0


async def _drain_all(faces: list[Face], timeout: float) -> None:
    async with asyncio.TaskGroup() as group:
        for face in faces:
            group.create_task(face.drain(timeout))
