"""The RPCs of EngineService: check, call, stream; errors are mapped by `handlers`.

Knows nothing about sockets or any engine: requests go through the `RequestTable`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable

from google.protobuf.duration_pb2 import Duration

from enginewire import v1 as pb
from enginewire.access.access import OPEN, Access
from enginewire.access.caller import caller
from enginewire.server.admission.delivery import BufferLimits, Connection, HandleSink, RequestStream
from enginewire.server.admission.live import needs_preparation
from enginewire.server.admission.origin import Origin
from enginewire.server.admission.table import RequestTable
from enginewire.server.engines.interface import Item
from enginewire.server.failures import Cancelled, EngineError, InvalidRequest, Unsupported
from enginewire.server.lifecycle import DrainPlan, Lifecycle
from enginewire.server.services.call_metadata import apply_metadata, origin_of
from enginewire.server.services.handlers import Call, text_metadata
from enginewire.server.status import as_failure
from enginewire.server.validation.generate import check_request_id

LIFETIME_KEY = "enginewire-lifetime-id"
MAX_ABORTED_IDS = 16_384
"""Of one call: with ids of any length the answer stays below what clients take."""


class EngineServicer:
    """Serves EngineService for one engine."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        limits: BufferLimits,
        lifetime_id: str,
        access: Access = OPEN,
        trailer: Callable[[], tuple[str, bytes]] | None = None,
    ) -> None:
        """`trailer` makes metadata for the end of each answer of `Generate`."""
        self._access = access
        self._trailer = trailer
        self._lifecycle = lifecycle
        self._requests = lifecycle.requests
        self._limits = limits
        self._lifetime_id = lifetime_id

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        """One request, one stream."""
        metadata = text_metadata(call)
        apply_metadata(request, metadata, self._requests.config.capabilities)
        origin, deadline = origin_of(self._access, metadata), deadline_of(call.time_remaining())
        if needs_preparation(request):
            await self._requests.prepare(request, origin)
        stream = RequestStream(self._limits)
        context = self._requests.submit(request, stream, deadline, origin)
        try:
            await call.send_initial_metadata(((LIFETIME_KEY, self._lifetime_id),))
            lifetime_id = self._lifetime_id
            async for item in stream.read():
                yield _response(item, request.request_id, lifetime_id)
                lifetime_id = ""
            if self._trailer is not None:
                call.set_trailing_metadata((self._trailer(),))
        finally:
            await self._requests.abort(context, "the call ended")

    async def GenerateMultiplexed(
        self, frames: AsyncIterator[pb.GenerateMultiplexedRequest], call: Call
    ) -> AsyncIterator[pb.GenerateMultiplexedResponse]:
        """Many requests, one stream."""
        if self._lifecycle.config is not None and not self._lifecycle.config.capabilities.multiplexed:
            raise Unsupported("this engine only embeds")
        session = MultiplexedSession(
            self._requests, self._limits, self._lifetime_id, call.time_remaining(), self._access
        )
        reader = asyncio.create_task(session.read(frames), name="multiplexed reader")
        try:
            await call.send_initial_metadata(((LIFETIME_KEY, self._lifetime_id),))
            async for frame in session.connection.frames():
                yield frame
        finally:
            reader.cancel()
            await session.abort_all("the stream ended")

    async def Abort(self, request: pb.AbortRequest, call: Call) -> pb.AbortResponse:
        """End requests by id."""
        if request.all == bool(request.request_ids):
            raise InvalidRequest(
                "request_ids: exactly one of request_ids and all must be set", field="request_ids"
            )
        if (count := len(request.request_ids)) > MAX_ABORTED_IDS:
            raise InvalidRequest(
                f"request_ids: too many, got {count}, allowed 1..{MAX_ABORTED_IDS}", field="request_ids"
            )
        reason = request.reason or "abort"
        if request.all:
            aborted = await self._requests.abort_all(reason, caller())
            return _abort_response((request_id, pb.ABORT_OUTCOME_ABORTED) for request_id in aborted)
        for request_id in request.request_ids:
            check_request_id(request_id)
        outcomes = await self._requests.abort_ids(request.request_ids, reason)
        return _abort_response(zip(request.request_ids, outcomes, strict=True))

    async def Drain(self, request: pb.DrainRequest, call: Call) -> AsyncIterator[pb.DrainResponse]:
        """Stop admission and report until nothing runs."""
        default = self._lifecycle.default_plan
        plan = DrainPlan(
            deadline=_seconds(request, "deadline", default.deadline),
            admission_grace=_seconds(request, "admission_grace", default.admission_grace),
        )
        async for progress in self._lifecycle.drain(plan):
            yield progress

    async def Cleanup(self, request: pb.CleanupRequest, call: Call) -> pb.CleanupResponse:
        """Release the engine."""
        already_clean = await self._lifecycle.cleanup(abort_in_flight=request.abort_in_flight)
        return pb.CleanupResponse(already_clean=already_clean)


class MultiplexedSession:
    """The client's side of one multiplexed stream: its frames, its handles."""

    def __init__(
        self,
        requests: RequestTable,
        limits: BufferLimits,
        lifetime_id: str,
        time_remaining: float | None,
        access: Access,
    ) -> None:
        self._access = access
        self.connection = Connection(limits, lambda: requests.step)
        self._requests = requests
        self._lifetime_id = lifetime_id
        self._deadline = deadline_of(time_remaining)
        self._preparing: dict[int, tuple[asyncio.Task[None], HandleSink]] = {}

    async def read(self, frames: AsyncIterator[pb.GenerateMultiplexedRequest]) -> None:
        """Serve the client's frames until it half-closes. A malformed frame ends the stream."""
        try:
            async for frame in frames:
                for submit in frame.submits:
                    self._submit(submit)
                await self._abort(frame.abort.handles, frame.abort.reason or "abort")
        except Exception as error:  # noqa: BLE001  # whatever it was, it must end the stream, not this task
            self.connection.close(as_failure(error))
        else:
            self.connection.close()

    async def abort_all(self, reason: str) -> None:
        """Abort every request that is still live."""
        await self._abort(list(self.connection.live), reason)

    def _submit(self, submit: pb.Submit) -> None:
        handle = submit.handle
        if handle in self.connection.live:
            raise InvalidRequest(f"submits.handle: {handle} is live on this stream", field="submits.handle")
        sink = self.connection.sink(handle)
        try:
            apply_metadata(submit.generate, submit.metadata, self._requests.config.capabilities)
            origin = origin_of(self._access, submit.metadata)
            deadline = min(self._deadline, _timeout(submit), key=lambda at: math.inf if at is None else at)
            if needs_preparation(submit.generate):
                task = asyncio.create_task(self._prepare(submit.generate, sink, deadline, origin))
                self._preparing[handle] = task, sink
            else:
                self._accept(submit.generate, sink, deadline, origin)
        except EngineError as failure:
            sink.fail(failure)

    def _accept(
        self, request: pb.GenerateRequest, sink: HandleSink, deadline: float | None, origin: Origin
    ) -> None:
        handle = sink.handle
        self.connection.live[handle] = self._requests.submit(request, sink, deadline, origin)
        accepted = pb.Accepted(engine_lifetime_id=self._lifetime_id, request_id=request.request_id)
        self.connection.event(pb.HandleEvent(handle=handle, accepted=accepted))

    async def _prepare(
        self, request: pb.GenerateRequest, sink: HandleSink, deadline: float | None, origin: Origin
    ) -> None:
        """Accept what takes time to accept, without holding up the frames behind it."""
        try:
            await self._requests.prepare(request, origin)
            self._accept(request, sink, deadline, origin)
        except Exception as error:  # noqa: BLE001  # whatever it was, the handle must hear of it
            sink.fail(as_failure(error))
        self._preparing.pop(sink.handle)

    async def _abort(self, handles: Iterable[int], reason: str) -> None:
        live = []
        for handle in handles:
            if handle in self._preparing:
                task, sink = self._preparing.pop(handle)
                task.cancel()
                sink.fail(Cancelled("aborted before it was accepted"))
            elif (context := self.connection.live.get(handle)) is not None:
                live.append(context)
        await self._requests.abort_each(live, reason)


def _response(item: Item, request_id: str, lifetime_id: str) -> pb.GenerateResponse:
    if isinstance(item, pb.EngineEvent):
        return pb.GenerateResponse(engine_event=item, request_id=request_id, engine_lifetime_id=lifetime_id)
    return pb.GenerateResponse(output=item, request_id=request_id, engine_lifetime_id=lifetime_id)


def deadline_of(time_remaining: float | None) -> float | None:
    """A deadline on the time.monotonic() clock from the seconds a call has left."""
    return None if time_remaining is None else time.monotonic() + time_remaining


def _timeout(submit: pb.Submit) -> float | None:
    if not submit.HasField("timeout"):
        return None
    seconds = submit.timeout.ToNanoseconds() / 1e9
    if seconds <= 0:
        raise InvalidRequest("submits.timeout: must be positive", field="submits.timeout")
    return deadline_of(seconds)


def _seconds(request: pb.DrainRequest, field: str, default: float) -> float:
    if not request.HasField(field):  # type: ignore[arg-type]  # one of the two literal names
        return default
    duration: Duration = getattr(request, field)
    seconds = duration.ToNanoseconds() / 1e9
    if seconds < 0:
        raise InvalidRequest(f"{field}: must not be negative, got {seconds} s", field=field)
    return seconds


def _abort_response(outcomes: Iterable[tuple[str, pb.AbortOutcome.ValueType]]) -> pb.AbortResponse:
    return pb.AbortResponse(
        results=[pb.AbortResult(request_id=request_id, outcome=outcome) for request_id, outcome in outcomes]
    )
