"""Requests that every server has to refuse, each wrong in one way, and how they are refused.

The suite behind the rules about refusals in general (ERR-11 and on). Whether each of them is refused at
all is for the requirement that forbids it: what a server accepts is left out here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.fields import fields_of
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect

UINT32_MAX = 2**32 - 1
LONGEST_ID = 128
LONG_TEXT = 4200
"""Characters: more than all details may have, and not more than a library takes as trailers."""
INVALID = pb.ERROR_REASON_INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class Invalid:
    """What is wrong, the request, and what its refusal names."""

    wrong: str
    request: pb.GenerateRequest
    reason: pb.ErrorReason.ValueType
    field: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A request of the suite and the answer to it."""

    invalid: Invalid
    exchange: Exchange


def invalid_requests(ctx: Context) -> list[Invalid]:
    """The suite, with ids of its own."""
    return list(_invalid_requests(ctx))


async def refusals(ctx: Context) -> list[Refused]:
    """The suite sent once, and what was refused of it; shared by all checks, shown as their evidence."""
    found = await ctx.once("refusals", lambda: _refusals(ctx))
    for refused in found:
        ctx.show(refused.exchange)
    return found


async def send(ctx: Context, suite: list[Invalid], client: Client | None = None) -> list[Refused]:
    """Each of the suite sent once, a few at a time, and what was refused of it."""
    client, slots = client or ctx.session.client(), asyncio.Semaphore(4)

    async def one(invalid: Invalid) -> Refused:
        async with slots:
            stream = await ctx.start(invalid.request, client=client).end()
            return Refused(invalid, stream.exchange)

    answered = await asyncio.gather(*map(one, suite))
    return [refused for refused in answered if not (refused.exchange.is_ok or refused.exchange.timed_out)]


def long_texts(ctx: Context) -> list[Invalid]:
    """A long text in each field that takes one, most of which no server takes: a refusal may repeat it."""
    text = "?" * LONG_TEXT
    made = [Invalid("a long request_id", ctx.request(request_id=text), INVALID, "request_id")]
    for path in fields_of((FieldDescriptor.CPPTYPE_STRING,)):
        request = ctx.request(max_tokens=1)
        is_text = path.steps[-1].type == FieldDescriptor.TYPE_STRING
        path.put(request, text if is_text else text.encode())
        made.append(Invalid(f"a long {path.name}", request, INVALID, path.name))
    return made


def fails_later(ctx: Context) -> pb.GenerateRequest:
    """A request whose lists contradict each other only after its first token.

    NotApplicable where an engine lacks one of them.
    """
    if not (ctx.capabilities.allowed_token_ids and ctx.capabilities.bad_words):
        raise NotApplicable("without allowed_token_ids and bad_words no request fails after its first token")
    token = ctx.prompt()[0]
    twice = pb.TokenSequence(token_ids=[token, token])
    return ctx.request(allowed_token_ids=[token], bad_words_token_ids=[twice])


async def failed_later(ctx: Context) -> Stream:
    """What came of such a request, asked once for all checks."""

    async def observe() -> Stream:
        return await ctx.start(fails_later(ctx)).end()

    stream = await ctx.once("failed later", observe)
    ctx.show(stream.exchange)
    return stream


def _invalid_requests(ctx: Context) -> Iterator[Invalid]:
    def changed(wrong: str, field: str, **changes: Value) -> Invalid:
        return Invalid(wrong, ctx.request(**changes), INVALID, field)

    vocabulary = max(ctx.config.vocab_size, 1)
    ids = ctx.prompt()
    yield changed("an id that is no name", "request_id", request_id="no name / at all")
    yield changed("an id that is too long", "request_id", request_id="x" * (LONGEST_ID + 1))
    yield changed("an empty prompt", "token_ids", token_ids=[])
    yield changed("an id beyond the vocabulary", "token_ids", token_ids=[*ids, vocabulary])
    yield changed("no output", "stop_conditions.max_tokens", max_tokens=0)
    yield changed("more than there may be", "stop_conditions.min_tokens", max_tokens=2, min_tokens=3)
    yield changed("a temperature below 0", "sampling_options.temperature", temperature=-1.0)
    yield changed("a temperature that is no number", "sampling_options.temperature", temperature=math.nan)
    yield changed("an empty nucleus", "sampling_options.top_p", top_p=0.0)
    yield changed("too small a top_k", "sampling_options.top_k", top_k=-2)
    yield changed("no choice", "sampling_options.n", n=0)
    yield changed(
        "a stop id beyond the vocabulary", "stop_conditions.stop_token_ids", stop_token_ids=[UINT32_MAX]
    )
    missing = ctx.request()
    missing.ClearField("request")
    yield Invalid("no request", missing, INVALID, "request")
    yield from _of_other_reasons(ctx)


def _of_other_reasons(ctx: Context) -> Iterator[Invalid]:
    model = ctx.request(model="no-such-model")
    yield Invalid("an unknown model", model, pb.ERROR_REASON_MODEL_NOT_FOUND, "model")
    if ctx.info.maximum_client_revision < UINT32_MAX:
        newer = requests.change(ctx.request(), client_revision=ctx.info.maximum_client_revision + 1)
        yield Invalid("a newer client", newer, pb.ERROR_REASON_REVISION_MISMATCH, "client_revision")
    if ctx.config.HasField("context_length"):
        long = requests.change(ctx.request(), token_ids=ctx.prompt(ctx.config.context_length))
        yield Invalid("too long a prompt", long, pb.ERROR_REASON_CONTEXT_EXCEEDED, "token_ids")


async def _refusals(ctx: Context) -> list[Refused]:
    found = await send(ctx, invalid_requests(ctx))
    expect(found, "not one invalid request was refused", expected="a status other than OK", seen="OK")
    return found
