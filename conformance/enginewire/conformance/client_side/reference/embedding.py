"""Embed of the reference backend, in methods that a mutant can override."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.wire.exchange import DETAILS_KEY

if TYPE_CHECKING:
    from enginewire.v1.embedding_service_pb2_grpc import EmbeddingServiceAsyncStub


class Embeddings:
    """Of texts and token ids, by a backend of one engine."""

    embedding: EmbeddingServiceAsyncStub
    """The engine."""

    async def embed(
        self, asked: pb.BackendServiceEmbedRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.BackendServiceEmbedResponse:
        """All inputs at a time."""
        inputs = [self.token_ids_of(each) for each in asked.inputs]
        request = pb.PreprocessedEmbeddingRequest(
            token_ids=[pb.TokenSequence(token_ids=each) for each in inputs]
        )
        embed = pb.EmbedRequest(request_id=asked.request_id, request=request)
        try:
            output = (await self.embedding.Embed(embed)).output
        except grpc.aio.AioRpcError as error:
            status = self.of_inputs(Failed.of(error).status)
            await context.abort(error.code(), status.message, ((DETAILS_KEY, status.SerializeToString()),))
        return pb.BackendServiceEmbedResponse(output=output, request_id=asked.request_id)

    def of_inputs(self, status: pb.Status) -> pb.Status:
        """The engine's status about an input, which has another name here."""
        detail = pb.ErrorDetail()
        for packed in status.details:
            if packed.Unpack(detail):
                detail.field = detail.field.replace("token_ids[", "inputs[", 1)
                packed.Pack(detail)
        return status

    def token_ids_of(self, given: pb.EmbeddingInput) -> list[int]:
        """A token per byte of a text; the tokenizer of the kit has no merges."""
        return list(given.text.encode()) if given.HasField("text") else list(given.token_ids.token_ids)
