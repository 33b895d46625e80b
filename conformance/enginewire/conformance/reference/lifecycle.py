"""Start, drain, clean-up, and what health says of each state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.engine import Engine
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.wire.foreign import health_types

POLL_SECONDS = 0.005

SERVICES = ("EngineService", "DiscoveryService")


class Lifecycle(Engine):
    """States of the server."""

    def __init__(self) -> None:
        super().__init__()
        self._drain_deadline: float | None = None
        self._grace_until = 0.0
        self._drained = False
        self._timed_out = False

    async def start(self) -> None:
        """Load nothing, as slowly as the settings say."""
        await asyncio.sleep(self.settings.start_seconds)
        if self.state == pb.ENGINE_STATE_STARTING:
            self.state = pb.ENGINE_STATE_READY

    async def open_parts(self) -> None:
        """Open what parts of the reference need beside the server."""

    async def close_parts(self) -> None:
        """Close it."""

    def check_state(self) -> None:
        """Refuse requests unless the state allows them."""
        if self.state == pb.ENGINE_STATE_STARTING:
            raise Refusal(pb.ERROR_REASON_NOT_STARTED, "the engine is still starting")
        if self.state == pb.ENGINE_STATE_STOPPED:
            raise Refusal(pb.ERROR_REASON_ENGINE_DEAD, "the engine was cleaned up")
        if self.state == pb.ENGINE_STATE_DRAINING and time.monotonic() >= self._grace_until:
            raise Refusal(pb.ERROR_REASON_DRAINING, "the server is draining")

    async def drain(self, request: pb.DrainRequest) -> AsyncIterator[pb.DrainResponse]:
        """Join the drain or begin it, and report until its end."""
        for name in ("deadline", "admission_grace"):
            if getattr(request, name).ToTimedelta().total_seconds() < 0:
                raise invalid(name, "is negative", getattr(request, name).seconds, "0 or more")
        self.begin_drain(request)
        while not self._drained:
            yield self.drain_progress()
            await asyncio.sleep(POLL_SECONDS)
            self.continue_drain()
        yield self.drain_end()

    def begin_drain(self, request: pb.DrainRequest) -> None:
        """Stop admission; of several deadlines the earliest counts."""
        now, seconds = time.monotonic(), self.settings.shutdown_seconds
        if request.HasField("deadline"):
            seconds = request.deadline.ToTimedelta().total_seconds()
        if self.state == pb.ENGINE_STATE_READY:
            self.state = pb.ENGINE_STATE_DRAINING
            self._grace_until = now + request.admission_grace.ToTimedelta().total_seconds()
        self._drain_deadline = min(now + seconds, self._drain_deadline or now + seconds)

    def continue_drain(self) -> None:
        """End the drain when nothing is in flight, or cut it at its deadline."""
        assert self._drain_deadline is not None
        if self.is_busy() and time.monotonic() >= self._drain_deadline:
            self._timed_out = True
            self.abort_all()
        is_over = time.monotonic() >= self._grace_until
        self._drained = self._timed_out or (is_over and not self.is_busy())

    def is_busy(self) -> bool:
        """What a drain waits for."""
        return bool(self.live)

    def drain_progress(self) -> pb.DrainResponse:
        """Where the drain is."""
        in_grace = time.monotonic() < self._grace_until
        state = pb.DRAIN_STATE_GRACE if in_grace else pb.DRAIN_STATE_DRAINING
        load = self.load()
        return pb.DrainResponse(state=state, running=load.running, waiting=load.waiting)

    def drain_end(self) -> pb.DrainResponse:
        """The final state."""
        return pb.DrainResponse(state=pb.DRAIN_STATE_TIMED_OUT if self._timed_out else pb.DRAIN_STATE_DRAINED)

    async def cleanup(self, request: pb.CleanupRequest) -> pb.CleanupResponse:
        """Wait for or abort what is in flight, then stop for good."""
        is_first = self.state != pb.ENGINE_STATE_STOPPED
        self.state = pb.ENGINE_STATE_STOPPED
        if request.abort_in_flight:
            self.abort_all()
        while self.live:  # noqa: ASYNC110  # simpler than an event per way to end
            await asyncio.sleep(POLL_SECONDS)
        self.clear_cache()
        return pb.CleanupResponse(already_clean=not is_first)

    def abort_all(self) -> list[str]:
        """Abort everything; returns the ids."""
        ids = list(self.live)
        for job in list(self.live.values()):
            self.abort(job)
        return ids

    def health(self, service: str) -> int:
        """The status of a service, SERVICE_UNKNOWN for names that are not served."""
        if service == health_types.LIVENESS:
            stopped = self.state in (pb.ENGINE_STATE_STOPPED, pb.ENGINE_STATE_DEAD)
            return health_types.NOT_SERVING if stopped else health_types.SERVING
        if service not in [f"enginewire.v1.{name}" for name in SERVICES]:
            return health_types.SERVICE_UNKNOWN
        ready = self.state == pb.ENGINE_STATE_READY
        return health_types.SERVING if ready else health_types.NOT_SERVING
