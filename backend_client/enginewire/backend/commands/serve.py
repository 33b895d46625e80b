"""`enginewire-backend serve`: the faces of a backend that listen, from their start to their common end.

Knows nothing about what a face speaks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Protocol

from enginewire.access.listener_options import access_of, audit_log_of
from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.grpc_service import grpc_face
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.processes.engine_output import write_quietly
from enginewire.backend.processes.stop_signals import StopSignals
from enginewire.listening.health_port import health_port
from enginewire.metrics.stats_line import StatsLine
from enginewire.program import systemd

log = logging.getLogger(__name__)

# What the end may take beside the requests: last words, and a launched engine that has nothing to do.
MARGIN_SECONDS: Final = 5.0


class Face(Protocol):
    """Something that listens at `address`."""

    @property
    def address(self) -> str:
        """For people and programs that connect."""
        ...

    async def drain(self, timeout: float) -> None:
        """Accept nothing more, and end what still runs after `timeout` seconds."""
        ...


Announce = Callable[[Sequence[str]], None]
"""Takes the addresses that now answer: gRPC's, then HTTP's and SMG's where they were asked for."""


def announce(addresses: Sequence[str]) -> None:
    """A line on standard error for each address."""
    for address in addresses:
        write_quietly(sys.stderr, f"listening on {address}\n")


async def serve(
    backend: TextBackend, options: ServeOptions, signals: StopSignals, announce: Announce = announce
) -> int:
    """Serve until the first signal, then let running requests finish within the shutdown timeout.

    A second one cancels this. Raises AddressError.
    """
    access, audit = access_of(options), audit_log_of(options)
    async with AsyncExitStack() as stack:
        if audit is not None:
            stack.callback(audit.close)
            backend.backend.activity.audit = audit
        await stack.enter_async_context(traced(backend, options))
        grpc = await stack.enter_async_context(grpc_face(backend, options, access, audit))
        faces: list[Face] = [grpc]
        if options.health_port is not None:
            probes = health_port(grpc.add_health, options.health_host, options.health_port)
            write_quietly(sys.stderr, f"health at {await stack.enter_async_context(probes)}\n")
        if options.http_port is not None:
            from enginewire.backend.frontends.http_api.server import http_face

            faces.append(await stack.enter_async_context(http_face(backend, options, access)))
        if options.smg_port is not None:
            from enginewire.backend.frontends.smg.server import smg_face

            faces.append(await stack.enter_async_context(smg_face(backend, options, access, audit)))
        await stack.enter_async_context(stats_logged(backend, options))
        announce([face.address for face in faces])
        systemd.tell(systemd.READY)
        # All of this stays: looking through it for garbage would only hold up an answer.
        gc.freeze()
        await signals.first()
        write_quietly(sys.stderr, "draining\n")
        systemd.tell(systemd.STOPPING)
        await _drain_all(faces, options.shutdown_timeout)
        return 0


def end_of(options: ServeOptions) -> StopSignals:
    """Signals of a server, which has one budget for its end, whatever callers and engines do."""
    return StopSignals(options.shutdown_timeout + MARGIN_SECONDS)


@asynccontextmanager
async def traced(backend: TextBackend, options: ServeOptions) -> AsyncIterator[None]:
    """Requests have spans inside of it, if they are asked for; the last ones are sent at its end."""
    if not options.otlp_traces_endpoint:
        yield
        return
    from enginewire.backend.replay.traces.spans import SpanTracing
    from enginewire.tracing.exporting import SpanExport

    export = SpanExport(options.otlp_traces_endpoint, "enginewire-backend")
    backend.backend.tracing = SpanTracing(export.tracer)
    try:
        yield
    finally:
        await export.close()


@asynccontextmanager
async def stats_logged(backend: TextBackend, options: ServeOptions) -> AsyncIterator[None]:
    """A line of the log every ten seconds inside of it, unless nobody wants that."""
    if options.disable_log_stats:
        yield
        return
    logging_them = asyncio.create_task(StatsLine().log_for_ever(log, backend.backend.activity.seen))
    try:
        yield
    finally:
        logging_them.cancel()


async def _drain_all(faces: list[Face], timeout: float) -> None:
    async with asyncio.TaskGroup() as group:
        for face in faces:
            group.create_task(face.drain(timeout))
