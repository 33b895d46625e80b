"""Backends whose embeddings are wrong."""

from __future__ import annotations

from typing import Any

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import ReferenceBackend


@client_mutant("embeds_no_more_than_a_byte", kills="CLI-40")
class EmbedsAByte(ReferenceBackend):
    def token_ids_of(self, given: pb.EmbeddingInput) -> list[int]:
        return super().token_ids_of(given)[:1]


@client_mutant("counts_the_first_part", kills="CLI-40/many")
class CountsTheFirstPart(ReferenceBackend):
    """As if it had sent 64 at a time."""

    async def embed(
        self, asked: pb.BackendServiceEmbedRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.BackendServiceEmbedResponse:
        response = await super().embed(asked, context)
        response.output.prompt_tokens = sum(len(self.token_ids_of(each)) for each in asked.inputs[:64])
        return response


@client_mutant("names_the_input_of_a_part", kills="CLI-40/refused")
class NamesTheInputOfAPart(ReferenceBackend):
    """As if it had sent 64 at a time."""

    def of_inputs(self, status: pb.Status) -> pb.Status:
        status, detail = super().of_inputs(status), pb.ErrorDetail()
        status.details[0].Unpack(detail)
        detail.field = f"inputs[{int(detail.field[7:-1]) % 64}]"
        status.details[0].Pack(detail)
        return status
