"""STP: token ids that end a choice.

A greedy run tells which tokens come; run again, one of them is a stop. What the greedy run did not
promise, as on an engine that rounds differently the second time, is not judged: see `_again`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.repetition import counts, repetition
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.stream import Choice, Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

NEEDS: Final = (*SHAPE, "LIM-01", "LIM-02")
FORETOLD: Final = (*NEEDS, "USE-04", "SEQ-02", "STP-07", "STP-08")

TRIES: Final = 3
BLOCKS: Final = 2
FEW: Final = 4
PLACES: Final = 4
"""Where an answer that is foretold is ended: at the last token of a step, and at others."""

CALLERS: Final = ("stop_token_ids", "stop_token_ids_visible")
SYSTEMS: Final = ("eos_token_ids", "stop_token_ids_hidden")


@check("STP-01", needs=NEEDS)
async def stop_ids_end(ctx: Context) -> None:
    """Each list of the caller, under ignore_eos."""
    greedy = await ctx.greedy()
    place = _place(greedy)
    for field in CALLERS:
        stream = await _again(ctx, greedy, **{field: [greedy.tokens[place]]})
        _ended_at(stream, place, "STOP")


@check("STP-01", variant="repeating", needs=(*FORETOLD, "STP-01"), alone=True)
async def stop_ids_end_what_is_foretold(ctx: Context) -> None:
    """Both lists of the caller in turns, where a step of an engine that drafts has several tokens."""
    await _end_what_is_foretold(ctx, CALLERS, "STOP")


@check("STP-02", needs=(*NEEDS, "STP-01", "STP-04"))
async def the_last_token_is_sent(ctx: Context) -> None:
    """Whichever list it is in."""
    greedy = await ctx.greedy()
    place = _place(greedy)
    for field in (*CALLERS, *SYSTEMS):
        stream = await _again(ctx, greedy, **_listed(ctx, greedy, field, greedy.tokens[place]))
        message = f"the token of {field} that ended the choice is not the last of its token_ids"
        expect_equal(stream.tokens[place:], [greedy.tokens[place]], message)


@check("STP-03", needs=(*NEEDS, "STP-01", "STP-04"))
async def the_match_is_named(ctx: Context) -> None:
    """The caller's condition; nothing for an end of sequence."""
    greedy = await ctx.greedy()
    token = greedy.tokens[_place(greedy)]
    for field in (*CALLERS, *SYSTEMS):
        stream = await _again(ctx, greedy, **_listed(ctx, greedy, field, token))
        terminal = stream.choice.terminal or pb.LLMEngineOutput()
        expected = pb.StopMatch(token_id=token) if field in CALLERS else pb.StopMatch()
        seen = terminal.stop_match
        expect(seen == expected, f"stop_match of an end by {field}", expected=expected, seen=seen)


@check("STP-04", needs=NEEDS)
async def eos_ids_end(ctx: Context) -> None:
    """Those of the request and the hidden ones, unless they are ignored."""
    greedy = await ctx.greedy()
    place = _place(greedy)
    for field in SYSTEMS:
        listed = _listed(ctx, greedy, field, greedy.tokens[place])
        _ended_at(await _again(ctx, greedy, **listed), place, "EOS")
        ignoring = await _again(ctx, greedy, **{**listed, "ignore_eos": True})
        expect_equal(ignoring.choice.reason_name, "LENGTH", f"ignore_eos does not switch off {field}")


@check("STP-04", variant="repeating", needs=(*FORETOLD, "STP-04"), alone=True)
async def eos_ids_end_what_is_foretold(ctx: Context) -> None:
    """Those of the request and the hidden ones in turns."""
    await _end_what_is_foretold(ctx, SYSTEMS, "EOS")


@check("STP-04", variant="config", gate="logit_bias", needs=(*NEEDS, "STP-04", "STP-08"))
async def eos_ids_of_the_engine_end(ctx: Context) -> None:
    """Forced by a bias: they count where the request has none of its own, whatever its other lists have."""
    if not ctx.config.eos_token_ids:
        raise NotApplicable("EngineConfig.eos_token_ids is empty")
    eos = ctx.config.eos_token_ids[0]
    bias = [pb.LogitBias(token_id=eos, bias=100.0)]
    forced = ctx.request(logit_bias=bias, ignore_eos=False)
    stream = await ctx.generate(forced)
    if eos not in stream.tokens:
        raise NotApplicable("a bias does not bring the engine's end of sequence: SAM-09 says more")
    _ended_at(stream, 0, "EOS")
    other = [token for token in ctx.prompt() if token != eos][:1]
    listed = dict.fromkeys((*CALLERS, "stop_token_ids_hidden"), other)
    _ended_at(await ctx.generate(ctx.request(logit_bias=bias, ignore_eos=False, **listed)), 0, "EOS")
    replaced = await ctx.generate(ctx.request(logit_bias=bias, ignore_eos=False, eos_token_ids=other))
    message = "the engine's eos_token_ids ended a choice whose request has its own"
    expect_equal(replaced.choice.reason_name, "LENGTH", message)


@check("STP-05", needs=(*NEEDS, "STP-01"))
async def the_first_stop_ends(ctx: Context) -> None:
    """The later one listed on both sides of the earlier one; then one id twice."""
    greedy = await ctx.greedy()
    early, late = _two_places(greedy)
    first, second = greedy.tokens[early], greedy.tokens[late]
    for ids in ([second, first, second], [first, second], [first, first]):
        _ended_at(await _again(ctx, greedy, stop_token_ids=ids), early, "STOP")


@check("STP-07", needs=(*NEEDS, "STP-01"))
async def stops_are_not_shared(ctx: Context) -> None:
    """One prompt of some blocks twice at the same time, and only one of the requests has a stop."""
    prompt = ctx.fresh_prompt(BLOCKS, room=16)
    alone = await ctx.generate(ctx.request(token_ids=prompt, max_tokens=ctx.tokens(16, len(prompt))))
    greedy = Greedy(prompt, alone.tokens)
    stop = [greedy.tokens[_place(greedy)]]
    stopped, free = await asyncio.gather(_again(ctx, greedy, stop_token_ids=stop), _again(ctx, greedy))
    expect_equal(stopped.choice.reason_name, "STOP", "a stop id had no effect beside another request")
    expect_equal(free.choice.reason_name, "LENGTH", "the stop id of one request ended another one")


@check("STP-08", needs=NEEDS)
async def the_prompt_does_not_stop(ctx: Context) -> None:
    """An id of the prompt that the greedy run never brings, in every list; a prompt that ends with EOS."""
    greedy = await ctx.greedy()
    # Not all of the run, so that a model that repeats its prompt can be judged too.
    greedy = Greedy(greedy.prompt, greedy.tokens[:FEW])
    absent = [token for token in greedy.prompt if token not in greedy.tokens][:1]
    if not absent:
        raise NotApplicable("each token of the prompt is generated at once")
    for field in (*CALLERS, *SYSTEMS):
        stream = await _again(ctx, greedy, **_listed(ctx, greedy, field, absent[0]))
        message = f"an id of {field} that is only in the prompt ended the choice"
        expect_equal(stream.choice.reason_name, "LENGTH", message)
    for end in ctx.config.eos_token_ids[:1]:
        stream = await ctx.generate(ctx.request(token_ids=[*greedy.prompt, end], max_tokens=FEW))
        is_ended = stream.choice.reason_name == "EOS" and stream.tokens[-1:] != [end]
        expect(not is_ended, "an end of sequence at the end of the prompt ended the choice")


async def _end_what_is_foretold(ctx: Context, fields: Sequence[str], reason: str) -> None:
    found = await repetition(ctx)
    for place, field in zip(found.places[:PLACES], cycle(fields), strict=False):
        listed = _listed(ctx, found.greedy, field, found.greedy.tokens[place])
        for count in counts(ctx):
            stream = await _again(ctx, found.greedy, **found.under, **listed, n=count)
            for index in range(count):
                _ended_at(stream, place, reason, index)


def _listed(ctx: Context, greedy: Greedy, field: str, token: int) -> dict[str, Value]:
    """A list with one id; the engine's own ends of sequence are replaced by an id that never comes."""
    met = {*greedy.prompt, *greedy.tokens}
    never = next((other for other in range(ctx.config.vocab_size) if other not in met), token)
    return {"eos_token_ids": [never], field: [token], "ignore_eos": field in CALLERS}


async def _again(ctx: Context, greedy: Greedy, **changes: Value) -> Stream:
    """The greedy run once more with other stop conditions; a few tries for engines that round."""
    others = list[list[int]]()
    for _ in range(TRIES):
        count = len(greedy.tokens)
        request = ctx.request(token_ids=greedy.prompt, max_tokens=count, **changes)
        stream = await ctx.generate(request)
        seen = [_choice(stream, index).tokens for index in range(num_choices(request.request))]
        others = [tokens for tokens in seen if tokens != greedy.tokens[: len(tokens)]]
        if not others:
            return stream
    raise Violation("a greedy run is not repeated", expected=greedy.tokens, seen=others[0])


def _places(greedy: Greedy) -> list[int]:
    """Where a token comes for the first time; without those that are in the prompt, if some are left."""
    new = [place for place, token in enumerate(greedy.tokens) if token not in greedy.tokens[:place]]
    return [place for place in new if greedy.tokens[place] not in greedy.prompt] or new


def _place(greedy: Greedy) -> int:
    """Where to stop: neither at the first token nor at the last, if possible."""
    inner = [place for place in _places(greedy) if 1 < place < len(greedy.tokens) - 1]
    return (inner or _places(greedy))[0]


def _two_places(greedy: Greedy) -> tuple[int, int]:
    places = _places(greedy)
    if len(places) < 2:
        places = _places(Greedy([], greedy.tokens))
    if len(places) < 2:
        raise NotApplicable("the greedy run is one token again and again")
    return places[-2], places[-1]


def _ended_at(stream: Stream, place: int, reason: str, index: int = 0) -> None:
    """The choice ended with this token; whether it is sent is for STP-02 to say."""
    choice = _choice(stream, index)
    expect_equal(choice.reason_name, reason, "a stop id ended the choice with another reason")
    seen, places = len(choice.tokens), (place, place + 1)
    expect(seen in places, "the choice did not end at its stop", expected=f"{place + 1} tokens", seen=seen)


def _choice(stream: Stream, index: int) -> Choice:
    """Empty when nothing came of it."""
    return stream.choices.get(index, Choice(index))
