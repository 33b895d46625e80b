"""BackendService over gRPC.

What the backend or the engine refuses before acceptance ends the call with a status and details;
whatever fails later is a last item and status OK, as the contract says. Knows nothing about decoding.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.access.access import OPEN, Access
from enginewire.access.audit import AuditLog
from enginewire.access.guard import guards
from enginewire.backend.config import DEFAULT_MESSAGE_BYTES, ServeOptions
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, Failure, annotated_to_proto
from enginewire.backend.embedding import embeddings_to_proto
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.calls import answered, parsed, refuse_caller, trace_of
from enginewire.backend.frontends.health import HEALTH, BackendHealth
from enginewire.backend.frontends.patient_writer import DEFAULT_PATIENCE_SECONDS, patient
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.inline_decoder import RequestTracker
from enginewire.backend.prompting.prompts import InvalidPrompt
from enginewire.grpc_server import new_server, started
from enginewire.listening.binding import add_reflection, listen

SERVICE: Final = "enginewire.v1.BackendService"
GENERATE: Final = f"/{SERVICE}/Generate"
"""Each of its requests has a line of its own in the audit log."""

Call = grpc.aio.ServicerContext[bytes, bytes]


class BackendServicer:
    """Serves prompts. Bytes in and out, so that malformed ones get details like every other failure."""

    def __init__(
        self,
        backend: TextBackend,
        default_timeout: float | None = None,
        slow_consumer_timeout: float = DEFAULT_PATIENCE_SECONDS,
        max_answer_bytes: int = DEFAULT_MESSAGE_BYTES,
    ) -> None:
        """In seconds: `default_timeout` is for callers without a deadline, the other for those who stall.

        All vectors of an answer are one message.
        """
        self._backend = backend
        self._default_timeout = default_timeout
        self._slow_consumer_timeout = slow_consumer_timeout
        self._max_answer_bytes = max_answer_bytes

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server registers."""
        generate: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self.Generate)
        embed: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self.Embed)
        return grpc.method_handlers_generic_handler(SERVICE, {"Generate": generate, "Embed": embed})

    async def Generate(self, data: bytes, call: Call) -> None:
        """Stream annotated outputs. Cancelling the call, or its deadline, aborts the request."""
        await answered(self._generate(data, call), call)

    async def Embed(self, data: bytes, call: Call) -> bytes:
        """The vectors, whole. Cancelling the call, or its deadline, ends the work."""
        return await answered(self._embed(data, call), call)

    async def _embed(self, data: bytes, call: Call) -> bytes:
        """Raises InvalidPrompt and RequestFailed."""
        asked = parsed(pb.BackendServiceEmbedRequest, data)
        if asked.request.token_ids:
            raise InvalidPrompt("request.token_ids", "must be empty: inputs has the inputs")
        request_id = asked.request_id or uuid.uuid4().hex
        embeddings = await self._backend.embed(
            [each.text if each.HasField("text") else each.token_ids.token_ids for each in asked.inputs],
            asked.request,
            path="inputs",
            request_id=request_id,
            timeout=self._timeout(call),
            metadata=trace_of(call),
        )
        output = embeddings_to_proto(embeddings)
        answer = pb.BackendServiceEmbedResponse(output=output, request_id=request_id).SerializeToString()
        if len(answer) > self._max_answer_bytes:
            raise InvalidPrompt("inputs", f"too many for one answer of {self._max_answer_bytes} bytes")
        return answer

    async def _generate(self, data: bytes, call: Call) -> None:
        """Raises InvalidPrompt, and RequestFailed for what was refused before acceptance."""
        asked = parsed(pb.BackendServiceGenerateRequest, data)
        tracker = RequestTracker()
        failure: Failure | None = None
        async with patient(call, self._slow_consumer_timeout) as caller:
            items = self._backend.generate(
                asked,
                timeout=self._timeout(call),
                metadata=trace_of(call),
                tracker=tracker,
                face="gRPC",
            )
            async with aclosing(items):
                async for item in items:
                    if item.error is None:
                        await caller.write(_serialized(item))
                    else:
                        failure = item.error
            # Only the end of the iteration tells whether the engine had accepted the request.
            if failure is not None and not tracker.engine_lifetime_id:
                raise RequestFailed(failure)
            if failure is not None:
                await caller.write(_serialized(Annotated(error=failure)))

    def _timeout(self, call: Call) -> float | None:
        remaining = call.time_remaining()
        return self._default_timeout if remaining is None else max(0.0, remaining)


class GrpcFace:
    """A running server. `address` is the target that reaches it."""

    def __init__(self, server: grpc.aio.Server, health: BackendHealth, address: str) -> None:
        self.address = address
        self._server = server
        self._health = health

    def add_health(self, server: grpc.aio.Server) -> None:
        """Let another server tell the same health."""
        self._health.add_to(server)

    async def drain(self, timeout: float) -> None:
        """Accept nothing more, and abort what still runs after `timeout` seconds."""
        self._health.drain()
        await self._server.stop(timeout)


@asynccontextmanager
async def grpc_face(
    backend: TextBackend, options: ServeOptions, access: Access = OPEN, audit: AuditLog | None = None
) -> AsyncIterator[GrpcFace]:
    """Serve BackendService and its health inside the context. Raises AddressError."""
    access = access if options.port is not None else access.on_socket
    server = new_server(
        options.max_message_bytes,
        options.max_concurrent_streams,
        guards(access, refuse_caller, audit, {GENERATE}),
    )
    servicer = BackendServicer(
        backend, options.timeout, options.slow_consumer_timeout, options.max_message_bytes
    )
    server.add_generic_rpc_handlers((servicer.handlers(),))
    health = BackendHealth(backend.backend.engines, SERVICE)
    health.add_to(server)
    if options.reflection:
        add_reflection(server, SERVICE, HEALTH)
    with listen(server, options.uds, options.host, options.port, access.tls) as target:
        async with started(server):
            yield GrpcFace(server, health, target)


def _serialized(item: Annotated[BackendOutput]) -> bytes:
    return pb.BackendServiceGenerateResponse(annotated=annotated_to_proto(item)).SerializeToString()
