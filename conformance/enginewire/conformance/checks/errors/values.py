"""ERR-01 to ERR-07, ERR-21 and ERR-22: values that no server may accept, and failures of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Final

import grpc
from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import INVALID, REFUSALS, Context, require_refusal
from enginewire.conformance.session.features import FEATURES
from enginewire.conformance.session.fields import ENUMS, FLOATS, FieldPath, fields_of, without_indexes
from enginewire.conformance.session.invalid_requests import failed_later
from enginewire.conformance.session.requests import PARTS, Value
from enginewire.conformance.session.sizes import names_of
from enginewire.conformance.wire.exchange import LIFETIME_KEY, Exchange
from enginewire.conformance.wire.violation import NotApplicable, expect
from enginewire.field_rules import FIELD_RULES, Rule

UNKNOWN_ENUM: Final = 9999
UINT32_MAX: Final = 2**32 - 1
ERROR_ID: Final = "error_id"
CONTRADICTING: Final = ("allowed_token_ids", "bad_words_token_ids")
NOT_FINITE: Final = (math.nan, math.inf, -math.inf)

ORDINARY: Final = 0.5
"""Inside the range of every floating-point field there is."""

JUDGED_ELSEWHERE: Final = ("sampling_options.n", "sampling_options.best_of")
"""By SEQ-06 and ERR-17."""


def _changed(path: str) -> Rule:
    """The rule of the field that a request is changed by: of `logit_bias` for what is inside."""
    parts = path.split(".")
    return FIELD_RULES[".".join(parts[: 2 if parts[0] in PARTS else 1])]


def _outside(rule: Rule) -> Iterator[float]:
    """Just outside of each end of a range."""
    kind, step = (float, 0.1) if rule.field.cpp_type in FLOATS else (int, 1)
    ends = (*([rule.min] if rule.above_min else ()), rule.min - step, rule.max + step)
    yield from (kind(end) for end in ends if math.isfinite(end))


ID_LISTS: Final = {
    _changed(path).path: _changed(path) for path, rule in FIELD_RULES.items() if rule.token_ids
}
"""Fields that hold token ids, or have them inside."""

OUTSIDE: Final[tuple[tuple[Rule, tuple[Value, ...]], ...]] = (
    *(
        (rule, tuple(_outside(rule)))
        for path, rule in FIELD_RULES.items()
        if path.startswith(("sampling_options.", "output_options."))
        if rule.has_range and not rule.is_in_list and path not in JUDGED_ELSEWHERE
    ),
    (
        FIELD_RULES["sampling_options.logit_bias"],
        (
            [pb.LogitBias(token_id=1, bias=100.5)],
            [pb.LogitBias(token_id=0), pb.LogitBias(token_id=1, bias=-100.5)],
            [pb.LogitBias(token_id=1)] * 2,
        ),
    ),
    (
        FIELD_RULES["sampling_options.bad_words_token_ids"],
        ([pb.TokenSequence()], [pb.TokenSequence(token_ids=[1, 1]), pb.TokenSequence()]),
    ),
)
"""Options, and values outside the range in their comment."""


def _neutral(rule: Rule) -> Value:
    """The value that asks for nothing, as the field wants it: of a text the rule has the length."""
    kinds = {FieldDescriptor.CPPTYPE_BOOL: bool, FieldDescriptor.CPPTYPE_STRING: str}
    kind = float if rule.field.cpp_type in FLOATS else kinds.get(rule.field.cpp_type, int)
    return "" if kind is str else kind(rule.neutral or 0)


NOTHING: Final[dict[str, Value]] = {
    rule.field.name: _neutral(rule)
    for rule in FIELD_RULES.values()
    if rule.capability and rule.neutral is not None
}
"""Fields with a capability of their own, and the values that change nothing."""


LONGEST_ID: Final = 128
MANY: Final = 1023
"""Ids in front of one that is wrong."""


@check("ERR-01", needs=SHAPE)
async def a_prompt_is_needed(ctx: Context) -> None:
    """Everything but the prompt; tokens that were delivered are none."""
    await ctx.rejects({"token_ids": []})
    if ctx.capabilities.resume:
        await ctx.rejects({"token_ids": []}, good=ctx.request(**FEATURES["resume"]))


@check("ERR-02", needs=SHAPE)
async def ids_are_in_the_vocabulary(ctx: Context) -> None:
    """In every list of ids the first one that does not exist, and the largest there is behind many others.

    As many as there may be, of a list that may not be very long. And in what a choice had that is not
    generated again, and in what the second one had.
    """
    for rule in ID_LISTS.values():
        for token, others in ((max(ctx.config.vocab_size, 1), 2), (UINT32_MAX, MANY)):
            await _refuses_value(ctx, rule, _with_token(ctx, rule, token, others))
    if ctx.capabilities.resume and ctx.choices(2) > 1:
        wrong, first = [max(ctx.config.vocab_size, 1)], pb.ResumedChoice(generated_token_ids=ctx.prompt(1))
        done = pb.ResumedChoice(generated_token_ids=wrong, finished=True)
        for choices in ([done], [first, pb.ResumedChoice(index=1, generated_token_ids=wrong)]):
            value = pb.Resume(choices=choices, attempt=1)
            await _refuses_value(ctx, FIELD_RULES["resume"], value, ctx.request(n=2))


@check("ERR-03", needs=SHAPE)
async def numbers_are_finite(ctx: Context) -> None:
    """NaN and both infinities in every floating-point field that the descriptors know.

    In a list of messages in the first entry, and in the second one where two are served.
    """
    slots = asyncio.Semaphore(4)

    async def one(path: FieldPath, place: int) -> None:
        async with slots:
            ordinary = await _answer(ctx, path, ORDINARY, place)
            # What is refused for the list itself says nothing about its second entry.
            for value in NOT_FINITE if ordinary.is_ok or not place else ():
                _refused_like(ordinary, await _answer(ctx, path, value, place), path, value)

    paths = fields_of(FLOATS)
    later = [(path, 1) for path in paths if path.is_in_list]
    await asyncio.gather(*(one(path, place) for path, place in [*((path, 0) for path in paths), *later]))


@check("ERR-04", needs=SHAPE)
async def long_prompts_are_refused(ctx: Context) -> None:
    """As many tokens as the window has, one more, and twice as many."""
    window = ctx.context_length()
    for length in (window, window + 1, 2 * window):
        prompt = ctx.prompt(length)
        await ctx.rejects({"token_ids": prompt}, field="", reason=pb.ERROR_REASON_CONTEXT_EXCEEDED)


@check("ERR-05", needs=SHAPE)
async def options_are_in_range(ctx: Context) -> None:
    """Just outside of each range, and beyond."""
    for rule, values in OUTSIDE:
        for value in values:
            await _refuses_value(ctx, rule, value)
    await _refuses_value(ctx, FIELD_RULES["sampling_options.top_k"], ctx.config.vocab_size + 1)


@check("ERR-06", needs=SHAPE)
async def models_have_names(ctx: Context) -> None:
    """Names that nobody has, of which some are like the model's; the empty one and its own are served."""
    served, model = {"", *names_of(ctx.config)}, ctx.config.model
    for name in sorted(served):
        stream = await ctx.start(ctx.request(model=name)).end()
        message = f"the served model is not found under its name {name!r}"
        expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)
    codes = (grpc.StatusCode.NOT_FOUND,)
    for name in {"no-such-model", f"{model}-2", f"{model}/2", model[:-1], model.swapcase()} - served:
        for is_probe in (False, True):
            good = ctx.request(max_tokens=1, is_probe=is_probe)
            await ctx.rejects({"model": name}, good=good, codes=codes, reason=pb.ERROR_REASON_MODEL_NOT_FOUND)


@check("ERR-27", needs=(*SHAPE, "ERR-11", "ERR-12"))
async def ids_are_names(ctx: Context) -> None:
    """None at all, one character too many, and characters that no id has; the longest one is served."""
    longest = ctx.request().request_id.ljust(LONGEST_ID, "-")
    stream = await ctx.start(ctx.request(request_id=longest)).end()
    message = f"a request_id of {LONGEST_ID} characters is refused"
    expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)
    for name in ("", "x" * (LONGEST_ID + 1), "a b", "a/b", "a\n", "ä"):
        exchange = await ctx.refused(ctx.request(request_id=name))
        require_refusal(exchange, INVALID, "request_id")


@check("ERR-07", needs=SHAPE)
async def unknown_enum_numbers_do_no_harm(ctx: Context) -> None:
    """A number that no revision has, in every enum field: refused, or read as 0."""
    for path in fields_of(ENUMS):
        for place in range(1 + path.is_in_list):
            as_zero = await _answer(ctx, path, None, place)
            unknown = await _answer(ctx, path, UNKNOWN_ENUM, place)
            if unknown.code is not as_zero.code:
                _require_invalid(unknown, path, UNKNOWN_ENUM)
        await ctx.generate(ctx.request())


@check("ERR-21", needs=SHAPE)
async def lists_do_not_contradict_each_other(ctx: Context) -> None:
    """One token allowed and forbidden, two, one that is named twice, and one among words of several."""
    if not ctx.capabilities.allowed_token_ids:
        raise NotApplicable("bad words alone cannot forbid a vocabulary without allowed_token_ids")
    first, second = sorted(set(ctx.prompt(8)))[:2]
    for allowed, words in (
        ([first], [[first]]),
        ([first, first], [[first]]),
        ([first, second], [[second], [first, first], [first]]),
    ):
        lists: dict[str, Value] = {"allowed_token_ids": allowed, "bad_words_token_ids": _words(words)}
        exchange = await ctx.rejects(lists, codes=INVALID, field="")
        _require_a_list(exchange)
        is_accepted = any(key == LIFETIME_KEY for key, _ in exchange.initial_metadata)
        expect(not is_accepted, "a request whose lists forbid every token was accepted before its refusal")


@check("ERR-21", variant="later", needs=(*SHAPE, "ERR-21"))
async def lists_may_contradict_each_other_later(ctx: Context) -> None:
    """After a token: refused at once, or as soon as nothing is left to choose."""
    exchange = (await failed_later(ctx)).exchange
    seen = exchange.status
    expect(
        exchange.code in INVALID, "lists that leave nothing have another end", expected=INVALID[0], seen=seen
    )
    _require_a_list(exchange)


def _require_a_list(exchange: Exchange) -> None:
    seen = exchange.detail.field if exchange.detail else ""
    is_named = without_indexes(seen).split(".")[-1] in CONTRADICTING
    expect(is_named, "the refusal names none of the lists", expected=" or ".join(CONTRADICTING), seen=seen)


@check("ERR-22", needs=SHAPE)
async def internal_failures_have_an_id(ctx: Context) -> None:
    """What is most likely to be one: lists that contradict each other only after a token."""
    stream = await failed_later(ctx)
    detail = stream.exchange.detail
    if detail is None or detail.reason != pb.ERROR_REASON_INTERNAL:
        return
    error_id, text = detail.metadata[ERROR_ID], stream.exchange.text
    expect(
        error_id, "a status with reason INTERNAL has no id in its metadata", expected=ERROR_ID, seen=detail
    )
    expect(error_id in text, "the message does not have the id", expected=error_id, seen=text)


def _words(words: list[list[int]]) -> list[pb.TokenSequence]:
    return [pb.TokenSequence(token_ids=word) for word in words]


def _with_token(ctx: Context, rule: Rule, token: int, others: int) -> Value:
    """A value of a field that ends with `token` behind so many valid ids, or as many as it takes."""
    room = ctx.longest_prompt() if rule.field.name in ("token_ids", "resume") else rule.most(ctx.limits)
    ids = [*ctx.prompt(max(min(others, room - 1), 0)), token]
    match rule.field.name:
        case "logit_bias":
            return [pb.LogitBias(token_id=each, bias=1.0) for each in dict.fromkeys(ids)]
        case "bad_words_token_ids":
            return [*_words([[each] for each in ids[:-1]]), pb.TokenSequence(token_ids=ids)]
        case "resume":
            return pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=ids)], attempt=1)
    return ids


async def _refuses_value(
    ctx: Context, rule: Rule, value: Value, good: pb.GenerateRequest | None = None
) -> None:
    """The differential check; where the capability is missing, that may be what is refused."""
    is_offered = not rule.capability or bool(getattr(ctx.capabilities, rule.capability))
    name = rule.field.name
    codes = INVALID if is_offered else REFUSALS
    exchange = await ctx.rejects({name: value}, codes=codes, field="", good=good)
    detail = exchange.detail
    expect(detail, "the status carries no ErrorDetail", seen=exchange.status)
    seen = detail.field if detail else ""
    # The path may go on to the entry that is wrong.
    named = without_indexes(seen).split(".")
    expect(name in named, "the refusal names another field", expected=name, seen=seen)


async def _answer(ctx: Context, path: FieldPath, value: Value, place: int = 0) -> Exchange:
    """To a request with this value, in the first entry of a list or, for as many choices, in a later one."""
    request = ctx.request(n=ctx.choices(place + 1)) if place else ctx.request()
    path.put(request, value, place)
    return await ctx.refused(request)


def _refused_like(ordinary: Exchange, exchange: Exchange, path: FieldPath, value: float) -> None:
    """Refused for its value, or as the same field is with an ordinary one, for its capability or role."""
    is_usable = ordinary.is_ok or ordinary.code is grpc.StatusCode.INVALID_ARGUMENT
    if is_usable or exchange.code is not ordinary.code:
        _require_invalid(exchange, path, value)


def _require_invalid(exchange: Exchange, path: FieldPath, value: float) -> None:
    expect(
        exchange.code is grpc.StatusCode.INVALID_ARGUMENT,
        f"{path.name} of {value} was not refused",
        expected="INVALID_ARGUMENT",
        seen=exchange.status,
    )
    require_refusal(exchange, INVALID)
    detail = exchange.detail
    seen = without_indexes(detail.field) if detail else "no ErrorDetail"
    # A server may name the message instead of its member: `multi_modal_data[0].items[0]`.
    expect(
        seen and (f"{path.name}.".startswith(f"{seen}.") or path.name.startswith("multi_modal_data")),
        "the refusal names another field",
        expected=path.name,
        seen=seen,
    )


@check("ERR-23", needs=SHAPE)
async def nothing_needs_no_capability(ctx: Context) -> None:
    """Each value that changes nothing, alone, then all of them together."""
    for name, value in NOTHING.items():
        stream = await ctx.start(ctx.request(**{name: value})).end()
        message = f"{name} {value}, which changes nothing, is refused"
        expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)
    await ctx.generate(ctx.request(**NOTHING))
    await ctx.generate(ctx.request(best_of=1))
    if (count := ctx.choices(2)) > 1:
        stream = await ctx.start(ctx.request(n=count, best_of=count)).end()
        message = "best_of of n, which changes nothing, is refused"
        expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)
