"""The RPC of EmbeddingService: check, call, answer; errors are mapped by `handlers`."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.access.access import OPEN, Access
from enginewire.server.lifecycle import Lifecycle
from enginewire.server.services.call_metadata import origin_of, routing_of
from enginewire.server.services.engine import deadline_of
from enginewire.server.services.handlers import Call, text_metadata


class EmbeddingServicer:
    """Serves EmbeddingService for one engine."""

    def __init__(self, lifecycle: Lifecycle, access: Access = OPEN) -> None:
        self._access = access
        self._requests = lifecycle.requests

    async def Embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        """One vector per input."""
        metadata = text_metadata(call)
        routing = routing_of(metadata, self._requests.config.capabilities)
        origin = origin_of(self._access, metadata)
        output = await self._requests.embed(request, deadline_of(call.time_remaining()), routing, origin)
        return pb.EmbedResponse(output=output, request_id=request.request_id)
