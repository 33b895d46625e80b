"""GDE: outputs follow their guides."""

from __future__ import annotations

import asyncio
import json
import random
import re
import string
from collections.abc import Callable, Iterable
from itertools import product
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.oracle.findings import in_time
from enginewire.conformance.oracle.languages import (
    COLOURS,
    DIGITS,
    KEYWORDS,
    LANGUAGES,
    PLACES,
    SCHEMA,
    Language,
    Pairs,
    begins_an_instance,
    is_instance,
    keeps,
    long_twins,
    twins,
)
from enginewire.conformance.running.registry import SHAPE, WHOLE, CheckFunction, Phase, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import REFUSALS, Context, require_refusal
from enginewire.conformance.session.saturation import beyond_memory, short_of_memory
from enginewire.conformance.session.views import detokenizer
from enginewire.conformance.wire.stream import Choice, Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

FIELD: Final = "sampling_options.guided_decoding"
UNLIKELY: Final = ("qzxjkvqwzxjqkvzw" * 4, "xqjzvkwqxzjvqkwx" * 4)
PLAIN: Final = 16
CHOICES: Final = 3
KINDS: Final = ("GDE-01", "GDE-02", "GDE-03")
ALIKE: Final = {
    "same-text": (twins, "whose text was one of another kind as well", "one_text_is_a_guide_of_two_kinds"),
    "same-beginning": (long_twins, "which begins as another one of its kind", "guides_may_begin_alike"),
}
ROOM: Final = 64
"""More tokens than any output below needs, white space aside."""

SPARE: Final = 8
"""Tokens that an answer may have beyond a digit in each."""

INVALID_GUIDES: Final = {
    pb.GUIDED_MODE_REGEX: [pb.GuidedDecoding(regex="(")],
    pb.GUIDED_MODE_JSON_SCHEMA: [pb.GuidedDecoding(json_schema="{"), pb.GuidedDecoding(json_schema="7")],
    pb.GUIDED_MODE_CHOICE: [pb.GuidedDecoding(choice=pb.GuidedChoice())],
    pb.GUIDED_MODE_JSON_OBJECT: [pb.GuidedDecoding(json_object=False)],
}

GUIDES: Final = {
    **{language.mode: language.guide for language in LANGUAGES},
    pb.GUIDED_MODE_EBNF_GRAMMAR: pb.GuidedDecoding(ebnf_grammar='root ::= "a"'),
    pb.GUIDED_MODE_JSON_OBJECT: pb.GuidedDecoding(json_object=True),
}


@check("GDE-01", needs=SHAPE)
async def schemas_are_satisfied(ctx: Context) -> None:
    """An object with one boolean, greedily and in some hot choices."""
    for choice in await _of_each_kind(ctx, pb.GUIDED_MODE_JSON_SCHEMA):
        _is_instance(await _text(ctx, choice), choice)


@check("GDE-02", needs=SHAPE)
async def patterns_match(ctx: Context) -> None:
    """Four digits, greedily and in some hot choices."""
    for choice in await _of_each_kind(ctx, pb.GUIDED_MODE_REGEX):
        text = await _text(ctx, choice)
        expect(re.fullmatch(DIGITS, text), "the output does not match as a whole", expected=DIGITS, seen=text)


@check(
    "GDE-02",
    variant="preempted",
    phase=Phase.LOAD,
    alone=True,
    costly=True,
    needs=(*WHOLE, "GDE-02", "INF-07"),
)
async def patterns_match_where_memory_is_short(ctx: Context) -> None:
    """As many digits as were asked for and no more, of requests of which one gives up its memory."""
    _needs_mode(ctx, pb.GUIDED_MODE_REGEX)
    wanted = beyond_memory(ctx)
    count = wanted[0].request.stop_conditions.max_tokens - SPARE
    if count < SPARE:
        raise NotApplicable("an answer has no room for the guide")
    guide = pb.GuidedDecoding(regex=f"[0-9]{{{count}}}")
    changes: dict[str, requests.Value] = {"guided_decoding": guide, "temperature": 1.0, "ignore_eos": None}
    async with short_of_memory(ctx, [requests.change(each, **changes) for each in wanted]) as streams:
        pass
    for stream in streams:
        choice = (await stream.ok()).choice
        text = await _text(ctx, choice)
        is_cut = choice.finish_reason == pb.FINISH_REASON_LENGTH and len(text) < count
        expect(
            re.fullmatch(rf"[0-9]{{{len(text) if is_cut else count}}}", text),
            "an output does not match as a whole where memory is short",
            expected=guide.regex,
            seen=text,
        )


@check("GDE-03", needs=SHAPE)
async def an_alternative_is_chosen(ctx: Context) -> None:
    """Of three, one of them the beginning of another, greedily and in some hot choices."""
    for choice in await _of_each_kind(ctx, pb.GUIDED_MODE_CHOICE):
        text = await _text(ctx, choice)
        expect(text in COLOURS, "the output is none of the alternatives", expected=COLOURS, seen=text)


def _alike(identifier: str, variant: str) -> CheckFunction:
    make, how, name = ALIKE[variant]

    async def holds(ctx: Context) -> None:
        found = await ctx.session.once(f"guides/{variant}", lambda: _of_pairs(ctx, make))
        texts = [(language, text) for language, text in found if language.id == identifier]
        if not texts:
            raise NotApplicable("no two guides are advertised that are alike in this")
        for language, text in texts:
            message = f"the output does not follow its guide, {how}"
            expect(language.matches(text), message, expected=language.described, seen=text)

    holds.__doc__ = f"A guide {how}, in either order."
    holds.__name__ = name
    return holds


for _id, _variant in (*product(KINDS, ["same-text"]), *product(KINDS[:2], ["same-beginning"])):
    _needs = (*SHAPE, *KINDS)
    check(_id, variant=_variant, needs=_needs, gate="guided_modes", in_company=False)(_alike(_id, _variant))


@check(
    "GDE-01", variant="keywords", needs=(*SHAPE, "GDE-01", "GDE-04"), gate="guided_modes", in_company=False
)
async def keywords_are_kept_or_refused(ctx: Context) -> None:
    """Keywords that grammars may lack, wherever they are in a schema; the answers are hot."""
    _needs_mode(ctx, pb.GUIDED_MODE_JSON_SCHEMA)
    count = ctx.choices(CHOICES)
    several: dict[str, requests.Value] = {"n": count} if count > 1 else {}
    for keyword, place in in_time(ctx, product(KEYWORDS, PLACES)):
        schema = json.dumps(PLACES[place][0](KEYWORDS[keyword][0]))
        guide = pb.GuidedDecoding(json_schema=schema)
        request = ctx.request(guided_decoding=guide, max_tokens=_room(ctx), temperature=1.0, **several)
        stream = await ctx.start(request).end()
        if stream.exchange.code in REFUSALS:
            continue
        await stream.ok()
        for choice in stream.choices.values():
            if choice.finish_reason != pb.FINISH_REASON_LENGTH:
                text = await _text(ctx, choice)
                message = f"an answer does not keep {keyword} {place} of its schema, which was not refused"
                expect(keeps(text, keyword, place), message, expected=schema, seen=text)


@check("GDE-04")
async def invalid_guides_are_refused(ctx: Context) -> None:
    """No regex, no JSON, no schema, no alternatives, no object; and the server serves on."""
    # The first guide may have to wait for a compiler that starts: as long as a generation may take.
    first = next(mode for mode in GUIDES if mode in ctx.capabilities.guided_modes)
    await ctx.generate(ctx.request(guided_decoding=GUIDES[first], max_tokens=_room(ctx)))
    for mode, guides in INVALID_GUIDES.items():
        for guide in guides if mode in ctx.capabilities.guided_modes else ():
            exchange = await ctx.rejects({"guided_decoding": guide}, field="")
            detail = exchange.detail
            seen = detail.field if detail else ""
            expect(seen.startswith(FIELD), "the refusal names another field", expected=FIELD, seen=seen)
    await ctx.generate(ctx.request())


@check("GDE-05", needs=(*SHAPE, "GDE-02", "GDE-03"))
async def two_guides_are_not_mixed(ctx: Context) -> None:
    """Both on the wire: refused, or the last one counts, as members of a oneof are read."""
    _needs_mode(ctx, pb.GUIDED_MODE_CHOICE)
    _needs_mode(ctx, pb.GUIDED_MODE_REGEX)
    request = ctx.request(guided_decoding=GUIDES[pb.GUIDED_MODE_CHOICE], max_tokens=_room(ctx))
    second = pb.SamplingOptions(guided_decoding=GUIDES[pb.GUIDED_MODE_REGEX])
    more = pb.GenerateRequest(request=pb.PreprocessedRequest(sampling_options=second))
    payload = request.SerializeToString() + more.SerializeToString()
    call = ctx.client.generate(payload, timeout=ctx.bounds.generation(ROOM))
    stream = await Stream(request, call).end()
    if stream.exchange.code is grpc.StatusCode.INVALID_ARGUMENT:
        return
    text = await _text(ctx, (await stream.ok()).choice)
    expect(
        re.fullmatch(DIGITS, text), "of two guides the last one does not count", expected=DIGITS, seen=text
    )


@check("GDE-06", needs=WHOLE)
async def cut_outputs_end_with_length(ctx: Context) -> None:
    """Two tokens of a long alternative."""
    _needs_mode(ctx, pb.GUIDED_MODE_CHOICE)
    guide = pb.GuidedDecoding(choice=pb.GuidedChoice(choices=UNLIKELY))
    stream = await ctx.generate(ctx.request(guided_decoding=guide, max_tokens=2))
    expect_equal(stream.choice.reason_name, "LENGTH", "a guided output cut by max_tokens ends otherwise")


@check("GDE-07", needs=SHAPE, alone=True)
async def neighbours_are_not_guided(ctx: Context) -> None:
    """Plain requests alone, and among guided ones."""
    mode = next(mode for mode in GUIDES if mode in ctx.capabilities.guided_modes)
    count = ctx.tokens(PLAIN)
    plain = [ctx.request(token_ids=ctx.prompt(salt=salt), max_tokens=count) for salt in range(3)]
    alone = [(await ctx.generate(request)).tokens for request in plain]
    guided = [ctx.request(guided_decoding=GUIDES[mode], max_tokens=_room(ctx)) for _ in plain]
    again = [requests.change(request, request_id=ctx.request().request_id) for request in plain]
    streams = await asyncio.gather(*(ctx.generate(request) for request in [*again, *guided]))
    # Batches may round differently, unless the engine says that they do not.
    count = count if ctx.capabilities.batch_invariant else 1
    for before, stream in zip(alone, streams, strict=False):
        expect_equal(stream.tokens[:count], before[:count], "a guided neighbour changes a plain request")


@check("GDE-08", needs=WHOLE)
async def guides_end_below_the_minimum(ctx: Context) -> None:
    """A minimum of more tokens than the guide has room for."""
    modes = (pb.GUIDED_MODE_REGEX, pb.GUIDED_MODE_CHOICE)
    mode = next((mode for mode in modes if mode in ctx.capabilities.guided_modes), None)
    if mode is None or _room(ctx) < ROOM:
        raise NotApplicable("neither a regex nor a choice can be brought to its end")
    guide = GUIDES[mode]
    for is_ignored in (True, None):  # the end of the sequence
        request = ctx.request(guided_decoding=guide, max_tokens=ROOM, min_tokens=ROOM, ignore_eos=is_ignored)
        reason = (await ctx.generate(request)).choice.reason_name
        message = "a guided choice does not end where its grammar allows nothing more"
        expect(reason in ("EOS", "STOP"), message, expected="EOS", seen=reason)


@check("GDE-09", needs=("GDE-02", "STP-01"))
async def stop_ids_wait_for_the_match(ctx: Context) -> None:
    """The id that a match began with is a stop id of the next request."""
    _needs_mode(ctx, pb.GUIDED_MODE_REGEX)
    [choice] = await _guided(ctx, pb.GUIDED_MODE_REGEX, temperature=0.0)
    first = choice.tokens[0]
    for choice in await _of_each_kind(ctx, pb.GUIDED_MODE_REGEX, stop_token_ids=[first]):
        text = await _text(ctx, choice)
        expect(re.match(DIGITS, text), "a stop id was chosen inside of a match", expected=DIGITS, seen=text)


@check("ERR-17", variant="guides", gate="guided_modes", needs=SHAPE)
async def other_guides_are_refused(ctx: Context) -> None:
    """Kinds that guided_modes does not list."""
    for mode, guide in GUIDES.items():
        if mode not in ctx.capabilities.guided_modes:
            exchange = await ctx.refused(ctx.request(guided_decoding=guide))
            require_refusal(exchange, REFUSALS)


def _needs_mode(ctx: Context, mode: pb.GuidedMode.ValueType) -> None:
    if mode not in ctx.capabilities.guided_modes:
        raise NotApplicable(f"{pb.GuidedMode.Name(mode)} is not advertised")


async def _of_each_kind(
    ctx: Context, mode: pb.GuidedMode.ValueType, **changes: requests.Value
) -> list[Choice]:
    """A greedy choice, and as many hot ones of one request as there may be, up to some."""
    _needs_mode(ctx, mode)
    count = ctx.choices(CHOICES)
    several: dict[str, requests.Value] = {"n": count} if count > 1 else {}
    greedy = await _guided(ctx, mode, temperature=0.0, **changes)
    return greedy + await _guided(ctx, mode, temperature=1.0, **several, **changes)


async def _guided(ctx: Context, mode: pb.GuidedMode.ValueType, **changes: requests.Value) -> list[Choice]:
    """The choices of a request, however many it has."""
    request = ctx.request(guided_decoding=GUIDES[mode], **{"max_tokens": _room(ctx), **changes})
    stream = await ctx.generate(request)
    choices = [stream.choices.get(index, Choice(index)) for index in range(num_choices(request.request))]
    if _room(ctx) < ROOM and any(each.finish_reason == pb.FINISH_REASON_LENGTH for each in choices):
        raise NotApplicable("the context window has no room for a guided output")
    return choices


async def _of_pairs(ctx: Context, make: Callable[[str, str], Pairs]) -> list[tuple[Language, str]]:
    """Guides, one after the other in either order, and the texts of their answers."""

    async def asked(pair: Iterable[Language]) -> list[tuple[Language, str]]:
        answers = []
        for language in pair:
            request = ctx.request(guided_decoding=language.guide, max_tokens=_room(ctx))
            choice = (await ctx.generate(request)).choice
            if choice.finish_reason != pb.FINISH_REASON_LENGTH:
                answers.append((language, await _text(ctx, choice)))
        return answers

    offered = set(ctx.capabilities.guided_modes)
    pairs = [pair[::step] for step in (1, -1) for pair in make(*_new_words())]
    can = [pair for pair in pairs if offered.issuperset(language.mode for language in pair)]
    return [each for some in await asyncio.gather(*map(asked, can)) for each in some]


def _new_words() -> tuple[str, str]:
    """Two words that no engine has seen as a guide."""
    letters = random.SystemRandom().sample(string.ascii_lowercase, 6)
    return "".join(letters[:3]), "".join(letters[3:])


def _room(ctx: Context) -> int:
    """For a guided output, which ends by itself."""
    return min(ROOM, ctx.room(requests.PROMPT_TOKENS))


async def _text(ctx: Context, choice: Choice) -> str:
    """The text of a choice; NotApplicable when neither the engine nor its tokenizer tells it."""
    if ctx.capabilities.tokenizer:
        table = await ctx.session.once("tokenizer", lambda: detokenizer.fetch(ctx.session.client()))
        return table.text(choice.tokens)
    if ctx.capabilities.stop_strings:
        return "".join(output.text for output in choice.outputs)
    raise NotApplicable("neither Capabilities.tokenizer nor Capabilities.stop_strings is advertised")


def _is_instance(text: str, choice: Choice) -> None:
    """An instance of the schema, or the beginning of one when it was cut."""
    if choice.finish_reason == pb.FINISH_REASON_LENGTH:
        message = "a cut output is no beginning of an instance"
        expect(begins_an_instance(text), message, expected=SCHEMA, seen=text)
        return
    expect(is_instance(text), "the output does not satisfy its schema", expected=SCHEMA, seen=text)
