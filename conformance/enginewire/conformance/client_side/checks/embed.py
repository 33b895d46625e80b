"""Checks of a backend's embeddings."""

from __future__ import annotations

from typing import cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.stage.engine import vector_of
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal


@client_check("CLI-40")
async def texts_and_token_ids_have_their_vectors(ctx: ClientContext) -> None:
    """A vector of the engine says which token ids it belongs to."""
    inputs = [
        pb.EmbeddingInput(text="ab"),
        pb.EmbeddingInput(token_ids=pb.TokenSequence(token_ids=[3, 2, 1])),
        pb.EmbeddingInput(text="é"),
    ]
    asked = pb.BackendServiceEmbedRequest(request_id="kit-client-embed", inputs=inputs)
    exchange = await ctx.client.call("BackendService.Embed", asked, timeout=ctx.patience).finish()
    if exchange.code is grpc.StatusCode.UNIMPLEMENTED:
        raise NotApplicable("the backend has no Embed")
    expect(exchange.is_ok, "inputs were not embedded", seen=exchange.status)
    (answer,) = cast(list[pb.BackendServiceEmbedResponse], exchange.messages)
    vectors = [list(each.values) for each in answer.output.embeddings]
    expected = [vector_of(each) for each in (b"ab", [3, 2, 1], "é".encode())]
    expect_equal(vectors, expected, "the vectors are not those of the inputs, in their order")
    seen = (answer.output.prompt_tokens, answer.request_id)
    expect_equal(seen, (7, "kit-client-embed"), "the tokens or the id of the request are others")
