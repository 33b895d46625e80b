"""EVT: what an engine tells beside its outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import takewhile
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.checks.streams.shapes import (
    CHOICES,
    MULTIPLEXED,
    PLAIN,
    Answer,
    Shape,
    ask,
    check_in,
)
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.sizes import most_choices
from enginewire.conformance.wire.multiplexed import Handle
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

VALUE: Final = "kit: a value"
UNKNOWN: Final = ("nobody.knows.this", "nobody.knows.this:either", ":", "")
MOST_EVENTS: Final = 1024
LONGEST: Final = 128
"""Tokens of a choice."""
TIMES: Final = 3
EACH: Final = 4
"""Tokens of each choice whose events are counted."""
MOST: Final = 32
"""Annotations in one request, beside those that nobody knows."""


@check_in("EVT-01", PLAIN, MULTIPLEXED, CHOICES, needs=SHAPE)
async def annotations_are_answered(ctx: Context, shape: Shape) -> None:
    """All keys that are advertised, in one request."""
    keys = known_keys(ctx)
    answer = await ask(ctx, shape, ctx.request(annotations=keys))
    _expect_answers(keys, answer.events)


@check("EVT-01", variant="again", gate="multiplexed", needs=("EVT-01/multiplexed", "MUX-01"), alone=True)
async def later_annotations_are_answered(ctx: Context) -> None:
    """The second request of a stream that had one with annotations before."""
    keys = known_keys(ctx)
    async with open_stream(ctx) as stream:
        for number in (1, 2):
            stream.submit(number, ctx.request(annotations=keys))
            await stream.until_ended(number)
        stream.half_close()
        await stream.finish()
        _expect_answers(keys, stream.handle(2).events)


@check("EVT-01", variant="behind-others", needs=(*SHAPE, "EVT-01", "EVT-04"), alone=True)
async def annotations_are_answered_behind_others(ctx: Context) -> None:
    """Behind many that nobody knows; of a request with a single token; of one that goes on."""
    keys = known_keys(ctx)
    strangers = [f"nobody.knows:{number}" for number in range(MOST)]
    resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=ctx.prompt(1))], attempt=1)
    kinds: list[dict[str, Value]] = [{}, {"max_tokens": 1}]
    kinds += [{"resume": resume}] if ctx.capabilities.resume else []
    for changes in kinds:
        stream = await ctx.generate(ctx.request(annotations=[*strangers, *keys], **changes))
        _expect_answers(keys, stream.events)


@check("EVT-02", needs=SHAPE)
async def nothing_is_told_unasked(ctx: Context) -> None:
    """Nothing asked for, something that nobody knows, and something with a value."""
    for asked in ([], _unknown(ctx), known_keys(ctx, f":{VALUE}")):
        stream = await ctx.generate(ctx.request(annotations=asked))
        _expect_asked(asked, stream.events)


@check("EVT-02", variant="multiplexed", gate="multiplexed", needs=("EVT-02", "MUX-01"), alone=True)
async def nothing_is_told_unasked_on_a_stream(ctx: Context) -> None:
    """Requests of one stream, beside each other and under the same handle: what one asks for is its own."""
    keys, none = known_keys(ctx, f":{VALUE}"), list[str]()
    async with open_stream(ctx) as stream:
        for pair in (none, keys), (keys, none), (none, none):
            asked = dict(enumerate(pair, 1))
            stream.send(*(stream.submitted(n, ctx.request(annotations=each)) for n, each in asked.items()))
            await stream.until_ended(*asked)
            for number, each in asked.items():
                _expect_asked(each, stream.handle(number).events)


@check_in("EVT-02", CHOICES, needs=("EVT-01/choices",), not_beside=("n",))
async def events_are_not_told_of_each_choice(ctx: Context, shape: Shape) -> None:
    """They are no more than those of one choice with as many tokens: some may be told with each token."""
    keys, each = known_keys(ctx), ctx.tokens(EACH)
    if not keys:
        raise NotApplicable("no annotation is answered here")
    alone = ctx.request(annotations=keys, max_tokens=ctx.tokens(shape.choices * EACH))
    one = _counts(await ask(ctx, PLAIN, alone))
    for way in (shape, replace(shape, is_multiplexed=True)) if ctx.capabilities.multiplexed else (shape,):
        several = _counts(await ask(ctx, way, ctx.request(annotations=keys, max_tokens=each)))
        repeated = [key for key in one if several[key] == shape.choices * one[key]]
        message = f"each of {shape.choices} choices has an event of its own"
        expect(not repeated, message, expected=dict(one), seen=dict(several))


@check_in("EVT-03", PLAIN, CHOICES, needs=("EVT-01",))
async def events_come_before_the_end(ctx: Context, shape: Shape) -> None:
    """The last message is a terminal output."""
    answer = await ask(ctx, shape, ctx.request(annotations=known_keys(ctx)))
    assert isinstance(answer.received, Stream)
    last = answer.received.responses[-1]
    is_terminal = last.HasField("output") and bool(last.output.finish_reason)
    expect(is_terminal, "an event came after the last terminal output", seen=last)


@check("EVT-03", variant="multiplexed", gate="multiplexed", needs=("EVT-03", "MUX-01"), alone=True)
async def events_come_after_acceptance_and_before_the_end(ctx: Context) -> None:
    """Until the whole stream has ended, nothing follows the last terminal of the handle."""
    handle = await _handle(ctx, known_keys(ctx))
    expect(not handle.is_early, "an event came before the frame with Accepted")
    expect(not handle.late, "an event came after the end of its handle", seen=handle.late[:1])


@check(
    "EVT-03",
    variant="order",
    gate="multiplexed",
    needs=("EVT-01/multiplexed", "EVT-03/multiplexed"),
    alone=True,
    in_company=False,
)
async def events_keep_their_place_on_a_stream(ctx: Context) -> None:
    """What each of some calls tells before any token is told so by one of as many streams at least.

    Of several choices, the first of which has ended before where that can be said.
    """
    keys, most = known_keys(ctx), ctx.tokens(2)
    changes: dict[str, Value] = {"n": ctx.choices(2)} if ctx.choices(2) > 1 else {}
    if changes and ctx.capabilities.resume:
        ended = pb.ResumedChoice(generated_token_ids=ctx.prompt(1), finished=True)
        changes["resume"] = pb.Resume(choices=[ended], attempt=1)
    first, found = set(keys), set[str]()
    for _ in range(TIMES):
        call = await ctx.generate(ctx.request(annotations=keys, max_tokens=most, **changes))
        first &= _first(call)
        found |= (await _handle(ctx, keys, max_tokens=most, **changes)).first
    late = sorted(first - found)
    expect(not late, "an event that calls tell before all tokens comes behind some on streams", seen=late)


@check("EVT-04", needs=(*SHAPE, "SAM-01"), alone=True)
async def unknown_annotations_change_nothing(ctx: Context) -> None:
    """The answer is the one of a request without them."""
    plain = await ctx.generate(ctx.request())
    stream = await ctx.start(ctx.request(annotations=_unknown(ctx))).end()
    expect(
        stream.exchange.is_ok, "an unknown annotation is refused", expected="OK", seen=stream.exchange.status
    )
    expect_equal(stream.tokens, plain.tokens, "an unknown annotation changes the answer")


@check("LIM-10", variant="events", gate="annotations", needs=(*SHAPE, "EVT-01", "SEQ-01"), in_company=False)
async def events_are_few(ctx: Context) -> None:
    """Of a request with more tokens than it may have events, in as many choices as there may be."""
    count = most_choices(ctx.config)
    each = MOST_EVENTS // count + 1
    if each > LONGEST:
        raise NotApplicable("so many tokens take too long in so few choices")
    several = {"n": count} if count > 1 else {}
    request = ctx.request(max_tokens=ctx.tokens(each, least=each), annotations=known_keys(ctx), **several)
    events = (await ctx.generate(request)).events
    expect(
        len(events) <= MOST_EVENTS, "a request has too many events", expected=MOST_EVENTS, seen=len(events)
    )


def known_keys(ctx: Context, value: str = "") -> list[str]:
    """Annotations that are answered here, as many as one request takes."""
    return [f"{key}{value}" for key in ctx.capabilities.annotations][:MOST]


def _unknown(ctx: Context) -> list[str]:
    """Among them names that only begin like one that is known."""
    return [*UNKNOWN, *known_keys(ctx, "s"), *known_keys(ctx, f".of:{VALUE}")]


def _counts(answer: Answer) -> Counter[str]:
    """How many events there are of each name."""
    return Counter(event.event for event in answer.events)


def _first(stream: Stream) -> set[str]:
    """Names of the events that came before any token."""
    before = takewhile(lambda response: not response.output.token_ids, stream.responses)
    return {response.engine_event.event for response in before}


async def _handle(ctx: Context, annotations: Iterable[str], **changes: Value) -> Handle:
    """A request that has a multiplexed stream for itself, to its end."""
    async with open_stream(ctx) as stream:
        stream.submit(1, ctx.request(annotations=annotations, **changes))
        await stream.until_ended(1)
        stream.half_close()
        await stream.finish()
        return stream.handle(1)


def _expect_answers(keys: Collection[str], events: Iterable[pb.EngineEvent]) -> None:
    told = {event.event for event in events}
    missing = [key for key in keys if key not in told]
    expect(not missing, "annotations that are advertised have no event", expected=keys, seen=sorted(told))


def _expect_asked(annotations: Iterable[str], events: Iterable[pb.EngineEvent]) -> None:
    asked = {annotation.partition(":")[0] for annotation in annotations} - {""}
    unasked = [event.event for event in events if event.event not in asked]
    expect(not unasked, "a request got an event that it did not ask for", expected=asked, seen=unasked)
