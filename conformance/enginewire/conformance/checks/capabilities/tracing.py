"""TRC: what a server tells of requests to a collector of traces, which the kit is."""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginewire.conformance.checks.capabilities.continued_traces import (
    EXPORT_SECONDS,
    STATE,
    Caller,
    collector_of,
    generate,
)
from enginewire.conformance.checks.capabilities.endings import Way, endings
from enginewire.conformance.running.registry import Phase, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.saturation import queued, saturated
from enginewire.conformance.session.views import detokenizer
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.foreign.collector import Span
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

MOST_TEXT: Final = 8
"""Characters. What is shorter may be there by chance."""
TOKENS: Final = 12
"""Of a prompt that has to be in no span; half of them side by side are no chance."""

NOT_IN_ANY_VOCABULARY: Final = 2**31
ROUNDS: Final = 4
"""What happens beside a request in each of them is no chance."""
NOTHING: Final = "nothing"


MALFORMED: Final[tuple[Callable[[Caller], str], ...]] = (
    lambda caller: f"ff-{caller.trace_id}-{caller.span_id}-01",
    lambda caller: f"00-{caller.trace_id.upper()}-{caller.span_id}-01",
    lambda caller: f"00-{caller.trace_id}-{'0' * len(caller.span_id)}-01",
    lambda caller: f"00-{caller.trace_id}-{caller.span_id}-01-more",
    lambda caller: f"00-{caller.trace_id}-{caller.span_id}",
    lambda caller: f"00-{caller.trace_id}{caller.span_id}-01",
)
"""With ids in them that could be taken for some."""


@check("TRC-01", in_company=False)
async def malformed_traces_are_not_continued(ctx: Context) -> None:
    """Malformed ones with ids that could be taken for some, then a good one."""
    sent = {make(caller): caller for make in MALFORMED for caller in [Caller.new()]}
    for wrong in sent:
        await generate(ctx, (("traceparent", wrong), ("tracestate", STATE)))
    for span in await _spans_beside_another(ctx, *sent.values()):
        wrong = next(each for each, caller in sent.items() if caller.trace_id == span.trace_id)
        raise Violation(f"a span has the trace of the malformed traceparent {wrong}", seen=span.name)


@check("TRC-02", in_company=False, alone=True)
async def what_is_not_sampled_has_no_spans(ctx: Context) -> None:
    """Ones of every shape and end that are not sampled, each between two that are."""
    asked, strays = await _ask_in_every_way(ctx, is_sampled=False)
    for one in asked:
        spans = collector_of(ctx).of([one.caller.trace_id])
        message = f"a request that is not sampled has spans ({one.way})"
        expect(not spans, message, expected="none", seen=spans)
    message = "each request that is not sampled has spans in a trace of its own"
    expect(not strays, message, expected="none", seen=strays)


@check("TRC-03", in_company=False)
async def the_state_is_kept(ctx: Context) -> None:
    """The caller's state in each span of its trace, whatever the shape and the end of its request."""
    callers = dict[str, Caller]()
    async with endings(ctx) as asker:
        for way, ask in asker.ways().items():
            callers[way] = caller = Caller.new()
            await ask(caller.metadata())
    await _all_of(ctx, callers["served"])
    for way, caller in callers.items():
        for span in collector_of(ctx).of([caller.trace_id]):
            message = f"the span {span.name} has another tracestate than its caller ({way})"
            expect_equal(span.state, STATE, message)


@check("TRC-04", in_company=False)
async def spans_hold_no_secrets(ctx: Context) -> None:
    """A prompt, its answer and metadata, in whichever form a span could hold them; and those of refusals."""
    caller, private = Caller.new(), secrets.token_hex(12)
    request = requests.change(ctx.request(max_tokens=ctx.tokens(TOKENS)), token_ids=ctx.prompt(TOKENS))
    tokens = await generate(ctx, (*caller.metadata(), ("x-kit-private", private)), request=request)
    unknown = NOT_IN_ANY_VOCABULARY + secrets.randbelow(NOT_IN_ANY_VOCABULARY)
    wrong = ctx.request(token_ids=[*ctx.prompt(2), unknown])
    # Whether these are refused, and why, is for others to judge.
    for asked, more in ((wrong, ()), (ctx.request(max_tokens=1), (("enginewire-priority", private),))):
        metadata = (*caller.metadata(), *more)
        await ctx.client.generate(asked, timeout=2 * ctx.bounds.answer, metadata=metadata).finish()
    spans = await _all_of(ctx, caller)
    texts = [private, *(str(value).split()[-1] for _, value in ctx.session.connection.metadata)]
    lists = [list(request.request.token_ids), tokens]
    if ctx.capabilities.tokenizer:
        table = await detokenizer.fetch(ctx.client)
        texts += [text for each in lists if len(text := table.text(each).strip()) >= MOST_TEXT]
    for span in spans:
        everything = "\n".join(span.said)
        numbers = re.findall(r"\d+", everything)
        held = [text for text in texts if text in everything]
        held += [number for number in numbers if number == str(unknown)]
        held += [str(some) for each in lists if (some := _part_in(each, numbers))]
        expect(not held, f"the span {span.name} tells what it must not", expected="neither", seen=held)


@check("TRC-05", in_company=False, alone=True)
async def spans_make_one_tree(ctx: Context) -> None:
    """Ids, times and parents of everything that is told of a request, wherever it is told.

    Of every shape and end: one that is refused may have no spans.
    """
    asked, strays = await _ask_in_every_way(ctx)
    for one in asked:
        _is_tree(one.caller, collector_of(ctx).of([one.caller.trace_id]), one.way)
    message = "each request has spans in a trace that is not its caller's"
    expect(not strays, message, expected="none", seen=strays)


@check(
    "TRC-05",
    variant="queued",
    phase=Phase.LOAD,
    needs=("TRC-05", "INF-08", "ABO-05"),
    in_company=False,
    alone=True,
)
async def spans_of_the_queue_make_one_tree(ctx: Context) -> None:
    """Of requests that never began: aborted while all slots are taken, of a call and of a stream, or late."""
    called, submitted, late = callers = [Caller.new() for _ in range(3)]
    async with saturated(ctx) as running, endings(ctx) as asker:
        await _aborted_in_the_queue(ctx, running, called)
        if ctx.capabilities.multiplexed:
            await _aborted_in_the_queue(ctx, running, submitted, is_multiplexed=True)
            await asker.late(late.metadata())
    await _spans_beside_another(ctx)
    for caller in callers:
        _is_tree(caller, collector_of(ctx).of([caller.trace_id]), "in the queue")


async def _aborted_in_the_queue(
    ctx: Context, running: list[Stream], caller: Caller, *, is_multiplexed: bool = False
) -> None:
    stream = await queued(ctx, running, metadata=caller.metadata(), is_multiplexed=is_multiplexed)
    await ctx.client.abort([stream.request.request_id])
    await stream.end()


def _is_tree(caller: Caller, spans: list[Span], way: str) -> None:
    ids = [span.span_id for span in spans]
    expect_equal(len(set(ids)), len(ids), f"two spans have one id ({way})")
    for span in spans:
        message = f"the span {span.name} ends before it begins ({way})"
        expect(0 < span.begin <= span.end, message, seen=span)
        is_known = span.parent_id in (caller.span_id, *ids)
        expect(is_known, f"nobody knows the parent of the span {span.name} ({way})", seen=span.parent_id)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came to its end in some way, between one that was served `before` and one `after` it."""

    way: str
    caller: Caller
    before: Caller
    after: Caller


async def _ask_in_every_way(ctx: Context, *, is_sampled: bool = True) -> tuple[list[Asked], list[str]]:
    """Requests of every shape and end, all of whose spans have come, and what strayed in one of these ways.

    Once more as long as something did: that may be chance.
    """
    asked, strays = list[Asked](), list[str]()
    for _ in range(ROUNDS):
        asked += await _round(ctx, is_sampled=is_sampled)
        if not (strays := _strays(ctx, asked)):
            break
    return asked, strays


async def _round(ctx: Context, *, is_sampled: bool) -> list[Asked]:
    """One request in every way, and NOTHING for as long."""
    asked, started = list[Asked](), time.monotonic()
    marks = [await _marked(ctx)]
    one_takes = time.monotonic() - started

    async def nothing(metadata: Metadata) -> int:
        await pause(one_takes)
        return 0

    async with endings(ctx) as asker:
        ways: dict[str, Way] = {NOTHING: nothing, **asker.ways()}
        for way, ask in ways.items():
            caller = Caller.new()
            await ask(caller.metadata(is_sampled=is_sampled))
            marks.append(await _marked(ctx))
            asked.append(Asked(way, caller, *marks[-2:]))
    await _all_of(ctx, *marks)
    return asked


async def _marked(ctx: Context) -> Caller:
    """Who asked for something that is sampled, and got it."""
    caller = Caller.new()
    await generate(ctx, caller.metadata())
    return caller


def _strays(ctx: Context, asked: list[Asked]) -> list[str]:
    """Spans in nobody's trace that began whenever a request came to its end in some way, which is named.

    But for those that also begin where nothing is asked for: they are of something that is no request.
    """
    collector, begun = collector_of(ctx), defaultdict[str, list[set[str]]](list)
    known = {caller.trace_id for one in asked for caller in (one.caller, one.before, one.after)}
    others = [span for span in collector.spans if span.trace_id not in known]
    for one in asked:
        begin = max(span.end for span in collector.of([one.before.trace_id]))
        end = min(span.begin for span in collector.of([one.after.trace_id]))
        begun[one.way].append({span.name for span in others if begin <= span.begin < end})
    beside = set[str]().union(*begun.pop(NOTHING))
    strays = {way: set.intersection(*names) - beside for way, names in begun.items()}
    return [f"{name} ({way})" for way, names in strays.items() for name in sorted(names)]


@check("TRC-06", in_company=False, alone=True)
async def a_collector_that_hangs_holds_up_nobody(ctx: Context) -> None:
    """Requests before and after an export that gets no answer."""
    collector = collector_of(ctx)
    collector.hold()
    try:
        await generate(ctx, Caller.new().metadata())
        expect(
            await collector.until(lambda: collector.num_held > 0, EXPORT_SECONDS * ctx.bounds.scale),
            "nothing was exported of a sampled request",
        )
        await generate(ctx, Caller.new().metadata())
    finally:
        collector.release()


async def _all_of(ctx: Context, *callers: Caller) -> list[Span]:
    """Everything that is told of some requests: what has come when a later one's has."""
    spans = await _spans_beside_another(ctx, *callers)
    if {span.trace_id for span in spans} != {caller.trace_id for caller in callers}:
        raise NotApplicable("the caller's trace is not continued, which is for MDT-02 to judge")
    return spans


async def _spans_beside_another(ctx: Context, *callers: Caller) -> list[Span]:
    """The spans of these callers, when those of a later request have come."""
    later = Caller.new()
    await generate(ctx, later.metadata())
    collector, within = collector_of(ctx), EXPORT_SECONDS * ctx.bounds.scale
    if not await collector.until(lambda: bool(collector.of([later.trace_id])), within):
        raise NotApplicable("no request has spans, which is for MDT-02 to judge")
    return collector.of([caller.trace_id for caller in callers])


def _part_in(tokens: list[int], numbers: list[str]) -> list[int]:
    """The first half of the tokens, where it stands among these numbers; empty where it does not."""
    half = tokens[: max(len(tokens) // 2, 3)]
    words = [str(token) for token in half]
    starts = range(len(numbers) - len(words) + 1)
    return half if any(numbers[start : start + len(words)] == words for start in starts) else []
