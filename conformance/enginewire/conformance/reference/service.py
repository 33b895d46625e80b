"""What each RPC answers. Messages in, messages out: the wire itself is in `server`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from enginewire import v1 as pb
from enginewire.conformance.reference.call_metadata import decimal, fold
from enginewire.conformance.reference.generation.engine import REMEMBERED
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.lifecycle import POLL_SECONDS
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.signals import Signals
from enginewire.conformance.wire.foreign import health_types

Answer = Callable[[Any, "Call"], Any]
"""What answers an RPC: an awaitable message, or an iterator of messages."""


class Call:
    """What a method may know of its RPC."""

    def __init__(self, context: grpc.aio.ServicerContext[object, object]) -> None:
        self.context = context

    @property
    def deadline(self) -> float:
        """When the caller gives up, on the monotonic clock."""
        remaining = self.context.time_remaining()
        return float("inf") if remaining is None else time.monotonic() + remaining

    @property
    def metadata(self) -> list[tuple[str, str | bytes]]:
        """What the caller sent beside the request."""
        return list(self.context.invocation_metadata() or ())

    async def accept(self) -> None:
        """Send the initial metadata."""
        await self.context.send_initial_metadata(())


class Service(Signals):
    """The RPCs of EngineService, DiscoveryService and Health."""

    most_ids = 16_384
    """Of one abort."""

    def __init__(self) -> None:
        super().__init__()
        self.instance_id = f"reference-{secrets.token_hex(4)}"
        self.aborted_early: deque[str] = deque(maxlen=REMEMBERED)

    def parts(self) -> dict[str, Answer]:
        """The RPCs that parts of the reference add, by name."""
        return {}

    def require(self, capability: str) -> None:
        """Refuse an RPC that belongs to a capability."""
        if not self.allows(capability):
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, f"the capability {capability} is not offered here")

    # -- EngineService

    def check_abort(self, request_id: str) -> None:
        """Raise Refusal for a request whose abort came before it."""
        if request_id in self.aborted_early:
            raise Refusal(pb.ERROR_REASON_CANCELLED, "the request was aborted before it arrived")

    async def generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        """Check, admit, accept, then everything the job brings."""
        self.check_state()
        self.fold(request, call)
        self.validate(request)
        self.check_abort(request.request_id)
        self.check_live(request.request_id)
        await self.claim(request.request)
        job = self.job(request.request_id, request.request, call.deadline)
        self.admit(job)
        try:
            await self.accept(job, call)
            async for response in self.responses(job):
                yield response
        finally:
            self.ended(job)

    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        """Put reserved metadata where it belongs."""
        if request.HasField("request"):
            fold(request, call.metadata, self.allows, self.number)

    def number(self, text: str) -> int:
        """What a reserved key says. Raises ValueError."""
        return decimal(text)

    async def claim(self, request: pb.PreprocessedRequest) -> None:
        """Fetch what another engine computed for the request, before it is accepted."""

    async def accept(self, job: Job, call: Call) -> None:
        """Make the acceptance visible."""
        await call.accept()

    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        """The outputs of a job as messages, before the first one its events."""
        lifetime_id, request_id = self.lifetime_id, job.request_id
        async for output in self.outputs(job):
            for event in self.due_events(job):
                yield pb.GenerateResponse(
                    engine_event=event, request_id=request_id, engine_lifetime_id=lifetime_id
                )
                lifetime_id = ""
            yield pb.GenerateResponse(output=output, request_id=request_id, engine_lifetime_id=lifetime_id)
            lifetime_id = ""

    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        """What a job brings until its end; its failure is raised."""
        while (item := await job.items.get()) is not None:
            if isinstance(item, Refusal):
                raise item
            yield item

    def due_events(self, job: Job) -> list[pb.EngineEvent]:
        """Its events, once."""
        events, job.events = job.events, []
        return events

    def ended(self, job: Job) -> None:
        """The call is over, whatever ended it: nothing of the job may stay."""
        self.release(job)

    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        """One outcome per id."""
        if bool(request.request_ids) == request.all:
            raise invalid(
                "request_ids", "are there together with all, or neither is", request.all, "one of both"
            )
        if request.all:
            ids = self.abort_all()
            done = [pb.AbortResult(request_id=name, outcome=pb.ABORT_OUTCOME_ABORTED) for name in ids]
            return pb.AbortResponse(results=done)
        if (count := len(request.request_ids)) > self.most_ids:
            raise invalid("request_ids", "are too many", count, f"at most {self.most_ids}")
        return pb.AbortResponse(
            results=[
                pb.AbortResult(request_id=name, outcome=self.abort_id(name)) for name in request.request_ids
            ]
        )

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        """Abort one request if it is live."""
        if job := self.live.get(request_id):
            self.abort(job)
            return pb.ABORT_OUTCOME_ABORTED
        if request_id in self.finished:
            return pb.ABORT_OUTCOME_FINISHED
        self.aborted_early.append(request_id)
        return pb.ABORT_OUTCOME_UNKNOWN

    # -- DiscoveryService

    async def info(self) -> pb.GetEngineInfoResponse:
        """Who the server is."""
        if self.state == pb.ENGINE_STATE_STARTING:
            raise Refusal(pb.ERROR_REASON_NOT_STARTED, "the engine is still starting")
        return pb.GetEngineInfoResponse(
            config=self.config,
            engine_name="enginewire-reference",
            engine_version="1",
            instance_id=self.instance_id,
            engine_lifetime_id=self.lifetime_id,
            contract_revision=pb.CONTRACT_REVISION,
            minimum_client_revision=pb.MINIMUM_CLIENT_REVISION,
            maximum_client_revision=pb.CONTRACT_REVISION,
            schema_digest=pb.schema_digest(),
        )

    async def get_load(self) -> pb.GetLoadResponse:
        """The load now."""
        return pb.GetLoadResponse(load=self.load())

    async def watch_load(self, request: pb.WatchLoadRequest) -> AsyncIterator[pb.WatchLoadResponse]:
        """The load now and after every change."""
        self.require("watch_load")
        interval = request.min_interval_ms if request.HasField("min_interval_ms") else 100
        if interval < 10:
            raise invalid("min_interval_ms", "is too short", interval, "at least 10")
        sent = None
        while True:
            load = self.load()
            if load != sent:
                yield pb.WatchLoadResponse(load=load)
                sent = load
            await asyncio.sleep(interval / 1000)

    # -- Health

    async def check_health(self, service: str) -> int:
        """The status of a service; a name that is not served is NOT_FOUND."""
        status = self.health(service)
        if status == health_types.SERVICE_UNKNOWN:
            reason, code = pb.ERROR_REASON_INVALID_REQUEST, grpc.StatusCode.NOT_FOUND
            raise Refusal(reason, "service: is not served here", field="service", code=code)
        return status

    async def watch_health(self, service: str) -> AsyncIterator[int]:
        """The status now and after every change."""
        sent = None
        while True:
            if (status := self.health(service)) != sent:
                yield status
                sent = status
            await asyncio.sleep(POLL_SECONDS)
