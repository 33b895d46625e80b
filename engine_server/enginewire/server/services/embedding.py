"""The RPC of EmbeddingService: check, call, answer; errors are mapped by `handlers`."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.call_metadata import routing_of
from enginewire.server.services.engine import deadline_of
from enginewire.server.services.handlers import Call, text_metadata
from enginewire.tracing.trace_context import passed_on


class EmbeddingServicer:
    """Serves EmbeddingService for one engine."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._requests = lifecycle.requests

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        """One vector per input."""
        metadata = text_metadata(call)
        routing, deadline = routing_of(metadata), deadline_of(call.time_remaining())
        output = await self._requests.embed(request, deadline, routing, passed_on(metadata))
        return pb.EmbedResponse(output=output, request_id=request.request_id)
