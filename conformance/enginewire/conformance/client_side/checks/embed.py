"""Checks of a backend's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.stage.alphabet import UNKNOWN
from enginewire.conformance.client_side.stage.engine import vector_of
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

NAME: Final = "kit-client-embed"
MANY: Final = 130
"""Inputs: more than a backend sends to its engine at a time, where it sends them in parts."""


@client_check("CLI-40", "refused")
async def a_refused_input_is_named(ctx: ClientContext) -> None:
    """The last one of many, by the engine."""
    exchange = await _embedded(ctx, _of_ids([[3, 2, 1]] * (MANY - 1) + [[UNKNOWN]]))
    expect_equal(
        exchange.code, grpc.StatusCode.INVALID_ARGUMENT, "an input that the engine refused has another end"
    )
    seen = exchange.detail.field if exchange.detail else ""
    expect(
        seen.startswith(f"inputs[{MANY - 1}]"),
        "another input is named",
        expected=f"inputs[{MANY - 1}]",
        seen=seen,
    )


@client_check("CLI-40")
async def texts_and_token_ids_have_their_vectors(ctx: ClientContext) -> None:
    """A vector of the engine says which token ids it belongs to."""
    inputs = [pb.EmbeddingInput(text="ab"), *_of_ids([[3, 2, 1]]), pb.EmbeddingInput(text="é")]
    await _expect_vectors(ctx, inputs, [b"ab", [3, 2, 1], "é".encode()])


@client_check("CLI-40", "many", needs=("CLI-40",))
async def many_inputs_have_their_vectors(ctx: ClientContext) -> None:
    """Of different lengths, and counted over all of them."""
    every = [[3] * (1 + place % 3) for place in range(MANY)]
    await _expect_vectors(ctx, _of_ids(every), every)


def _of_ids(every: Sequence[Sequence[int]]) -> list[pb.EmbeddingInput]:
    return [pb.EmbeddingInput(token_ids=pb.TokenSequence(token_ids=each)) for each in every]


async def _expect_vectors(
    ctx: ClientContext, inputs: Sequence[pb.EmbeddingInput], every: Sequence[Sequence[int]]
) -> None:
    """One for the ids of each input, and a count of all ids."""
    exchange = await _embedded(ctx, inputs)
    expect(exchange.is_ok, "inputs were not embedded", seen=exchange.status)
    (answer,) = cast(list[pb.BackendServiceEmbedResponse], exchange.messages)
    vectors = [list(each.values) for each in answer.output.embeddings]
    expected = [vector_of(each) for each in every]
    expect_equal(vectors, expected, "the vectors are not those of the inputs, in their order")
    seen = (answer.output.prompt_tokens, answer.request_id)
    counted = (sum(map(len, every)), NAME)
    expect_equal(seen, counted, "the tokens or the id of the request are others")


async def _embedded(ctx: ClientContext, inputs: Sequence[pb.EmbeddingInput]) -> Exchange:
    asked = pb.BackendServiceEmbedRequest(request_id=NAME, inputs=inputs)
    exchange = await ctx.client.call("BackendService.Embed", asked, timeout=ctx.patience).finish()
    if exchange.code is grpc.StatusCode.UNIMPLEMENTED:
        raise NotApplicable("the backend has no Embed")
    return exchange
