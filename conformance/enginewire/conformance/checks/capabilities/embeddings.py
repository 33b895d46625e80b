"""EMB: vectors, one per input."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import Phase, check, negative
from enginewire.conformance.session.bounds import LEAST_LOOKS, pause
from enginewire.conformance.session.context import (
    INVALID,
    LASTING_SECONDS,
    LEFT_OUT,
    REFUSALS,
    Context,
    require_refusal,
)
from enginewire.conformance.session.requests import LONG_REASON
from enginewire.conformance.session.sizes import names_of
from enginewire.conformance.session.watching import freed
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import ANY_METADATA
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

LENGTHS: Final = (3, 17, 1, 8)
MANY: Final = 5
"""Times so many inputs: more than the 16 for which some engines keep a fixed place."""
TOLERANCE: Final = 2e-2
"""Between a vector alone and in a batch, as a part of its length: half precision is allowed."""
UNIT: Final = 1e-2

LONG: Final = 64
"""Tokens of each input of a request that is to last."""
FEWEST_INPUTS: Final = 64
GROWTH: Final = 8
MOST_INPUTS: Final = 512
MOST_BYTES: Final = 3 * 1024 * 1024
BYTES_OF_A_NUMBER: Final = 4
INPUTS: Final = 2048
"""As many as request.proto allows."""
CANCELLED: Final = (grpc.StatusCode.CANCELLED,)
NOT_FOUND: Final = (grpc.StatusCode.NOT_FOUND,)


@check("EMB-01")
async def one_vector_per_input_in_order(ctx: Context) -> None:
    """More inputs than a small batch has, and the same the other way round."""
    inputs = [ctx.prompt(length, salt=salt) for salt, length in enumerate(_lengths(ctx) * MANY)]
    vectors = await _vectors(ctx, inputs)
    expect_equal(len(vectors), len(inputs), "there is not one vector per input")
    turned = await _vectors(ctx, inputs[::-1])
    for place, vector in enumerate(turned[::-1]):
        nearest = min(range(len(vectors)), key=lambda other: math.dist(vectors[other], vector))
        expect_equal(nearest, place, "the vectors are not in the order of the inputs")


@check("EMB-02", needs=("EMB-01",))
async def dimensions_are_kept(ctx: Context) -> None:
    """The model's own, then half of them where the model can shorten: the first of them, up to a factor.

    And as many as it has, and more than that: there are as many as were asked for, or none.
    """
    vectors = await _vectors(ctx, _inputs(ctx))
    size = len(vectors[0])
    expect(size, "a vector is empty")
    _are_vectors(vectors, size)
    for asked in (max(size // 2, 1), size, size + 1):
        exchange = await embed(ctx, _inputs(ctx), dimensions=asked)
        if not exchange.is_ok:
            require_refusal(exchange, REFUSALS, "dimensions")
            continue
        others = _vectors_of(exchange)
        _are_vectors(others, asked)
        for whole, other in zip(vectors, others, strict=True):
            apart = math.dist(_unit(whole[:asked]), _unit(other[:size]))
            expect(apart <= UNIT, "a vector that was made shorter is not the first numbers", seen=apart)


@check("EMB-03", needs=("EMB-01",))
async def batches_change_nothing(ctx: Context) -> None:
    """Each input alone and among longer ones, and among others that begin and end as it does."""
    inputs = [*_inputs(ctx), *_alike(ctx)]
    together = await _vectors(ctx, inputs)
    for tokens, vector in zip(inputs, together, strict=True):
        (alone,) = await _vectors(ctx, [tokens])
        distance, length = math.dist(alone, vector), math.hypot(*alone)
        expect(
            distance <= TOLERANCE * length,
            f"the vector of {len(tokens)} tokens is another one in a batch",
            expected=f"within {TOLERANCE} of its length",
            seen=f"{distance / max(length, 1e-30):.4f}",
        )


@check("EMB-04", needs=("EMB-01", "EMB-02", "EMB-03"))
async def normalised_vectors_have_length_one(ctx: Context) -> None:
    """A model normalises when one of its vectors has length 1: then all have, shorter ones as well."""
    vectors = await _vectors(ctx, _inputs(ctx))
    if not any(abs(math.hypot(*vector) - 1) <= UNIT for vector in vectors):
        raise NotApplicable("no vector has length 1: the model does not normalise")
    shorter = await embed(ctx, _inputs(ctx), dimensions=max(len(vectors[0]) // 2, 1))
    if shorter.is_ok:
        vectors += _vectors_of(shorter)
    lengths = [round(math.hypot(*vector), 3) for vector in vectors]
    wrong = [length for length in lengths if abs(length - 1) > UNIT]
    expect(not wrong, "some vectors have length 1, others have not", expected="1", seen=wrong)


@check("EMB-05", needs=("EMB-01",))
async def bad_inputs_are_named(ctx: Context) -> None:
    """The third of four is empty, too long or not in the vocabulary; without it the request is good."""
    good = _inputs(ctx)
    await _vectors(ctx, good)
    bad: list[list[int]] = [[], [*ctx.prompt(2), ctx.config.vocab_size]]
    if ctx.config.HasField("context_length"):
        bad.append(ctx.prompt(2) * (ctx.config.context_length + 1))
    for tokens in bad:
        exchange = await embed(ctx, [*good[:2], tokens, good[3]])
        require_refusal(exchange, INVALID, "token_ids")
        detail = exchange.detail
        seen = detail.field if detail else ""
        expect_equal(seen, "token_ids[2]", "the refusal does not name the index of the bad input")


@check("LIM-10", variant="embed", gate="embeddings", needs=("EMB-01",))
async def as_many_inputs_as_there_may_be(ctx: Context) -> None:
    """The most of them, of one token each, and one more."""
    most, (vector,) = INPUTS, await _vectors(ctx, [ctx.prompt(1)])
    if most * len(vector) * BYTES_OF_A_NUMBER > MOST_BYTES:
        raise NotApplicable(f"{most} vectors of {len(vector)} numbers are more than one answer may have")
    prompts = [ctx.prompt(1, salt=salt) for salt in range(most + 1)]
    seen = len(await _vectors(ctx, prompts[:most]))
    expect_equal(seen, most, "there is not one vector per input")
    require_refusal(await embed(ctx, prompts), INVALID, "token_ids")


@check("EMB-06", needs=("EMB-01",))
async def prompt_tokens_are_counted(ctx: Context) -> None:
    """Over all inputs, one of which comes twice."""
    inputs = _inputs(ctx)
    inputs.append(inputs[1])
    exchange = await embed(ctx, inputs)
    seen = cast(pb.EmbedResponse, exchange.response()).output.prompt_tokens
    expect_equal(seen, sum(map(len, inputs)), "prompt_tokens is not the number of tokens of all inputs")


@check("EMB-07", phase=Phase.LOAD, alone=True, needs=("EMB-01", "ABO-03", "INF-13"))
async def aborted_ones_are_cancelled(ctx: Context) -> None:
    """By its id, then all that there are, for a reason that is longer than a status may be."""
    most = await _most_inputs(ctx)
    for all_of_them in (False, True):
        count, named = FEWEST_INPUTS, ctx.request()
        while not await _is_cancelled(ctx, count, named.request_id, all_of_them):
            if count >= most:
                raise NotApplicable("the longest request to embed ends before it can be aborted")
            count, named = min(GROWTH * count, most), ctx.request()
        await freed(ctx, [named])


@check(
    "ABO-11",
    variant="embed",
    gate="embeddings",
    phase=Phase.LOAD,
    needs=("EMB-01", "ABO-11"),
    not_beside=("request_id",),
)
async def an_abort_may_come_before_its_inputs(ctx: Context) -> None:
    """As for a request that generates."""
    name = ctx.request().request_id
    await ctx.client.abort([name])
    refused = await embed(ctx, _inputs(ctx), name=name)
    require_refusal(refused, CANCELLED, reason=pb.ERROR_REASON_CANCELLED)


async def _is_cancelled(ctx: Context, count: int, name: str, all_of_them: bool) -> bool:
    """Abort a request of so many inputs; False when it has ended before. A Violation when it goes on."""
    embedding = await _in_flight(ctx, count, name, ctx.connect(None, *ANY_METADATA))
    asked = pb.AbortRequest(all=all_of_them, reason=LONG_REASON)
    if not all_of_them:
        asked.request_ids.append(name)
    aborted = await ctx.client.ask("EngineService.Abort", asked)
    results = cast(pb.AbortResponse, aborted.response()).results
    is_told = (name, pb.ABORT_OUTCOME_ABORTED) in [(each.request_id, each.outcome) for each in results]
    goes_on = not is_told and not embedding.done() and await is_live(ctx)
    exchange = await embedding
    if is_told or not exchange.is_ok:
        require_refusal(exchange, CANCELLED, reason=pb.ERROR_REASON_CANCELLED)
        return True
    expect(not goes_on, "a request to embed goes on after its abort", expected="CANCELLED", seen="OK")
    return False


async def lasting_embedding(ctx: Context) -> asyncio.Future[Exchange]:
    """The answer of a request to embed that takes a while, as far as one can; it is in flight by now."""
    most, few = await _most_inputs(ctx), FEWEST_INPUTS
    exchange = await (await _in_flight(ctx, few, ctx.request().request_id))
    exchange.response()
    took = (exchange.ended_at or 0.0) - exchange.started_at
    # Of what it took, something may have been for the first one only.
    count = max(min(math.ceil(2 * LASTING_SECONDS / took * few), most), few)
    return await _in_flight(ctx, count, ctx.request().request_id)


async def _in_flight(
    ctx: Context, count: int, name: str, client: Client | None = None
) -> asyncio.Future[Exchange]:
    """The answer of a request to embed so many inputs, which was seen to live, or has ended.

    A Violation when it lasted, and the load never told of it.
    """
    inputs, looks = [ctx.prompt(min(LONG, ctx.longest_prompt()), salt=salt) for salt in range(count)], 0
    embedding = asyncio.ensure_future(embed(ctx, inputs, name=name, client=client))
    while not await is_live(ctx):
        if embedding.done():
            expect(looks < LEAST_LOOKS, "the load does not count a request to embed", seen=f"{looks} times")
            break
        looks += 1
        await pause()
    return embedding


async def is_live(ctx: Context) -> bool:
    """Whether anything runs or waits."""
    load = await ctx.client.load()
    return load.running + load.waiting > 0


async def _most_inputs(ctx: Context) -> int:
    (vector,) = await _vectors(ctx, [ctx.prompt(1)])
    return min(MOST_INPUTS, MOST_BYTES // (BYTES_OF_A_NUMBER * len(vector)))


@check("ERR-06", variant="embed", gate="embeddings", needs=("ERR-06", "EMB-01"))
async def other_models_embed_nothing(ctx: Context) -> None:
    """Names that nobody has, of models and of adapters; its own is served."""
    for name in sorted(names_of(ctx.config)):
        _vectors_of(await embed(ctx, _inputs(ctx), model=name))
    for name in ("no-such-model", f"{ctx.config.model}-2"):
        refused = await embed(ctx, _inputs(ctx), model=name)
        require_refusal(refused, NOT_FOUND, "model", pb.ERROR_REASON_MODEL_NOT_FOUND)


@negative("embeddings")
async def embed_is_refused(ctx: Context) -> None:
    """Embed itself."""
    require_refusal(await embed(ctx, [ctx.prompt()]), LEFT_OUT)


def _lengths(ctx: Context) -> list[int]:
    """Of inputs, as far as they fit the window."""
    return [min(length, ctx.longest_prompt()) for length in LENGTHS]


def _inputs(ctx: Context) -> list[list[int]]:
    return [ctx.prompt(length, salt=salt) for salt, length in enumerate(_lengths(ctx))]


def _alike(ctx: Context) -> list[list[int]]:
    """As long as each other, and different in one token in the middle."""
    prompt = ctx.prompt(min(LONG, ctx.longest_prompt()), salt=len(LENGTHS))
    middle, others = len(prompt) // 2, ctx.prompt(MANY, salt=len(LENGTHS) + 1)
    return [[*prompt[:middle], other, *prompt[middle + 1 :]] for other in sorted({*others, prompt[middle]})]


async def embed(
    ctx: Context,
    inputs: Sequence[Sequence[int]],
    dimensions: int = 0,
    name: str = "",
    revision: int = 0,
    client: Client | None = None,
    model: str = "",
) -> Exchange:
    """An `Embed`, whatever its end. With a `name` it has that id, with a `revision` its client has that."""
    asked = pb.PreprocessedEmbeddingRequest(
        token_ids=[pb.TokenSequence(token_ids=tokens) for tokens in inputs],
        dimensions=dimensions or None,
        model=model,
    )
    request_id = name or ctx.request().request_id
    request = pb.EmbedRequest(request_id=request_id, request=asked, client_revision=revision)
    timeout = ctx.bounds.generation(0, sum(map(len, inputs)))
    return await (client or ctx.client).ask("EmbeddingService.Embed", request, timeout=timeout)


async def _vectors(ctx: Context, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
    return _vectors_of(await embed(ctx, inputs))


def _vectors_of(exchange: Exchange) -> list[list[float]]:
    response = cast(pb.EmbedResponse, exchange.response())
    expect(response.output.embeddings, "an answer without vectors")
    return [list(embedding.values) for embedding in response.output.embeddings]


def _unit(vector: Sequence[float]) -> list[float]:
    length = math.hypot(*vector) or 1.0
    return [value / length for value in vector]


def _are_vectors(vectors: Sequence[Sequence[float]], size: int) -> None:
    sizes = {len(vector) for vector in vectors}
    expect_equal(sizes, {size}, "the vectors have other dimensions")
    finite = all(math.isfinite(value) for vector in vectors for value in vector)
    expect(finite, "a vector has a number that is not finite")
