"""The RPC of EmbeddingService: check, call, answer; errors are mapped by `rpc`."""

from __future__ import annotations

from engine_server.lifecycle import Lifecycle
from engine_server.rpc import Call
from engine_server.servicer import deadline_of
from enginewire import v1 as pb


class EmbeddingServicer:
    """Serves EmbeddingService for one engine."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._requests = lifecycle.requests

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        """One vector per input."""
        output = await self._requests.embed(request, deadline_of(call.time_remaining()))
        return pb.EmbedResponse(output=output, request_id=request.request_id)
