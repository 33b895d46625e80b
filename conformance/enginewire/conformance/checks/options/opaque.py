"""LIM-13: what is for routers, backends and callers changes nothing at an engine.

The fields are found by their class, so that one added to the contract is checked from that day on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.fields import FieldPath, fields_of
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.violation import Violation, expect, expect_equal
from enginewire.field_rules import FIELD_RULES

BLOCKS: Final = 3
"""Of the prompt, where that fits the window."""
TOKENS: Final = 4
LASTING: Final = 0.1
"""Seconds."""
MANY: Final = 1000
"""Entries of a list with large values: none is bounded that only others read."""
NOT_FOR_ROUTERS: Final = ("annotations", "extra_args", "prefill_result")
"""They ask for events, speak to one particular engine, or come from another one."""

SMALL: Final[Mapping[int, Value]] = {
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.001,
    FieldDescriptor.CPPTYPE_ENUM: 2,
    FieldDescriptor.CPPTYPE_STRING: "a",
    FieldDescriptor.CPPTYPE_UINT32: 1,
    FieldDescriptor.CPPTYPE_UINT64: 1,
}
"""By the type of a field: a time that has passed, a session that is closed."""
LARGE: Final[Mapping[int, Value]] = {
    FieldDescriptor.CPPTYPE_BOOL: False,
    FieldDescriptor.CPPTYPE_DOUBLE: 2.0,
    FieldDescriptor.CPPTYPE_ENUM: 1,
    FieldDescriptor.CPPTYPE_STRING: "Of the second kind",
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}


@check("LIM-13", needs=(*SHAPE, "SAM-01", "USE-01"), alone=True, in_company=False)
async def opaque_fields_change_nothing(ctx: Context) -> None:
    """All of them with small values and with large ones, alone and beside a request with the same ones.

    Also where the engine has to find out itself how long the answer may get.
    """
    length = min(BLOCKS * ctx.block_size, ctx.longest_prompt(TOKENS))
    asked = ctx.request(token_ids=ctx.prompt(length), max_tokens=ctx.tokens(TOKENS, length))
    # The first one fills the cache for the others.
    _, plain = [await _answer(ctx, asked) for _ in range(2)]
    for values in (SMALL, LARGE):
        if await _answer(ctx, asked, OPAQUE, values) != plain:
            expect_equal(await _different(ctx, asked, values), "none", "opaque fields change an answer")
    begun = await _beginning(ctx, ())
    for values in (SMALL, LARGE):
        message = "opaque fields change the beginning of an answer without max_tokens"
        expect_equal(await _beginning(ctx, OPAQUE, values), begun, message)
    running = await ctx.start(filled(ctx.lasting_request(LASTING))).first_token()
    await _answer(ctx, asked, OPAQUE, SMALL)
    await running.ok()
    message = "a request has ended because another one has the same opaque fields"
    reason = running.choice.reason_name
    expect(reason != "CANCELLED", message, expected="its own end", seen=reason)


def _leaves() -> Iterable[FieldPath]:
    for path in fields_of(SMALL):
        rule = FIELD_RULES[path.name]
        is_plain = not (rule.capability or rule.json or path.name.startswith(NOT_FOR_ROUTERS))
        if is_plain and rule.field_class == pb.FIELD_CLASS_OPAQUE:
            yield path


OPAQUE: Final = tuple(_leaves())


def filled(
    request: pb.GenerateRequest, paths: Iterable[FieldPath] = OPAQUE, values: Mapping[int, Value] = SMALL
) -> pb.GenerateRequest:
    """The request with these values in these fields."""
    for path in paths:
        last = path.steps[-1]
        for _ in range(MANY if last.is_repeated and values is LARGE else 1):
            path.put(request, values[last.cpp_type])
    return request


async def _answer(
    ctx: Context,
    asked: pb.GenerateRequest,
    paths: Iterable[FieldPath] = (),
    values: Mapping[int, Value] = SMALL,
) -> tuple[Value, ...]:
    """What a request with these fields gets: its status, tokens, reason and cached tokens."""
    request = ctx.request(
        token_ids=asked.request.token_ids, max_tokens=asked.request.stop_conditions.max_tokens
    )
    stream = await ctx.start(filled(request, paths, values)).end()
    if not stream.exchange.is_ok:
        return (stream.exchange.status,)
    cached = stream.usage.prompt_tokens_details.cached_tokens
    return stream.tokens, stream.choice.reason_name, cached


async def _beginning(
    ctx: Context, paths: Iterable[FieldPath], values: Mapping[int, Value] = SMALL
) -> tuple[Value, ...]:
    """How a request with these fields that leaves its length open begins, or how it ends that soon."""
    stream = ctx.start(filled(ctx.request(max_tokens=None), paths, values))
    count = ctx.tokens(TOKENS)
    with suppress(Violation):
        await stream.more(count)
        stream.cancel()
        return tuple(stream.tokens[:count])
    return stream.exchange.status, *stream.tokens


async def _different(ctx: Context, asked: pb.GenerateRequest, values: Mapping[int, Value]) -> str:
    """Which of them change it on their own."""
    plain = await _answer(ctx, asked)
    names = [path.name for path in OPAQUE if await _answer(ctx, asked, [path], values) != plain]
    return ", ".join(names) or "all of them together"
