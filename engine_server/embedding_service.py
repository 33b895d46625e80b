"""The RPC of EmbeddingService: check, call, answer; errors are mapped by `rpc`."""

from __future__ import annotations

from engine_server.call_metadata import routing_of
from engine_server.lifecycle import Lifecycle
from engine_server.rpc import Call, text_metadata
from engine_server.servicer import deadline_of
from enginewire import v1 as pb


class EmbeddingServicer:
    """Serves EmbeddingService for one engine."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._requests = lifecycle.requests

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        """One vector per input."""
        routing = routing_of(text_metadata(call))
        output = await self._requests.embed(request, deadline_of(call.time_remaining()), routing)
        return pb.EmbedResponse(output=output, request_id=request.request_id)
