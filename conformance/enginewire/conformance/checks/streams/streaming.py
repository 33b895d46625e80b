"""STR-11: tokens come as they are generated, whatever is asked for beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.company import Company, draw
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.features import FEATURES, SERVED_ALONE
from enginewire.conformance.session.requests import Value, change
from enginewire.conformance.wire.stopwatch import Stopwatch
from enginewire.conformance.wire.stream import Stream, num_choices
from enginewire.conformance.wire.violation import Violation, expect

ATTEMPTS: Final = 3
ANSWER_SECONDS: Final = 1.0

GATHERED: Final = 2**20
"""Tokens that an engine may gather: more than any answer has."""
OTHERS: Final = 3
PARTS: Final = 4
"""Of an answer, so that it is a long one."""
WAITING: Final = frozenset({"best_of", "beam_search"})
"""What an answer is chosen with when all of them are complete."""

BESIDE_AN_END: Final = 3
"""Parts of a choice: one beside the last one of another, one behind it, and one more."""

VISIBLE_SECONDS: Final = 0.1
"""Shorter than this, when something came says more about this machine than about the target."""


@check("STR-11", needs=SHAPE, alone=True)
async def tokens_are_streamed(ctx: Context) -> None:
    """When the first token of a long answer is here, the engine is still at it.

    Again, where it was not: this machine may have stalled. Nothing that gathers first ever passes.
    """
    await _require_streamed(ctx, lambda: ctx.lasting_request(ANSWER_SECONDS))


@check(
    "STR-11", variant="options", needs=(*SHAPE, "STR-11", "INF-09", "SEQ-02"), alone=True, in_company=False
)
async def options_are_streamed(ctx: Context) -> None:
    """The same of each choice, beside each option and beside many, by a call and over a stream."""
    ways = (False, True) if ctx.capabilities.multiplexed else (False,)
    for beside, make in _with_options(ctx):
        for is_multiplexed in ways:
            await _require_streamed(ctx, make, f" beside {beside}", is_multiplexed=is_multiplexed)


def _with_options(ctx: Context) -> Iterator[tuple[str, Callable[[], pb.GenerateRequest]]]:
    """Requests by what they ask for. What picks the best of whole answers has to wait for them."""

    def lasting(**changes: Value) -> pb.GenerateRequest:
        return ctx.lasting_request(ANSWER_SECONDS, **changes)

    for name, changes in FEATURES.items():
        if name in SERVED_ALONE - WAITING and getattr(ctx.capabilities, name):
            some = changes if name != "multiple_choices" else {"n": ctx.choices(2), "temperature": 1.0}
            yield name, partial(lasting, **some)
    if pb.GUIDED_MODE_REGEX in ctx.capabilities.guided_modes:
        count = lasting().request.stop_conditions.max_tokens
        yield "a guide", partial(lasting, guided_decoding=pb.GuidedDecoding(regex=f"[0-9]{{{count}}}"))
    if ctx.capabilities.multiple_choices and ctx.capabilities.resume and ctx.choices(2) > 1:
        for index in range(2):
            yield f"choice {index}, which has ended", partial(_one_short, ctx, lasting, index, 0)
            yield f"choice {index}, which ends soon", partial(_one_short, ctx, lasting, index, 1)
    # Everybody is in one of the two.
    for company in (draw(ctx.session.options.seed, number, ctx.config) for number in (0, 1)):
        yield str(company), partial(_joined, company, lasting)


def _one_short(
    ctx: Context, lasting: Callable[..., pb.GenerateRequest], index: int, left: int
) -> pb.GenerateRequest:
    """Two choices, one of which has had all its tokens, or all but so many."""
    request = lasting(n=2, temperature=1.0)
    had = ctx.prompt(request.request.stop_conditions.max_tokens - left)
    one = pb.ResumedChoice(index=index, generated_token_ids=had, finished=not left)
    return change(request, resume=pb.Resume(choices=[one], attempt=1))


def _joined(company: Company, make: Callable[[], pb.GenerateRequest]) -> pb.GenerateRequest:
    """What may be gathered is a small part of the answer, or nothing is."""
    request = company.joined(make())
    interval, longest = (
        request.request.output_options.stream_interval,
        request.request.stop_conditions.max_tokens,
    )
    return change(request, stream_interval=None) if PARTS * interval > longest else request


async def _require_streamed(
    ctx: Context,
    make: Callable[[], pb.GenerateRequest],
    beside: str = "",
    *,
    is_multiplexed: bool = False,
) -> None:
    for _ in range(ATTEMPTS):
        if await _is_streamed(ctx, make(), beside, is_multiplexed):
            return
    message = f"the first token comes when the answer is complete{beside}"
    raise Violation(message, expected="Load.running 1", seen=0)


async def _is_streamed(ctx: Context, request: pb.GenerateRequest, beside: str, is_multiplexed: bool) -> bool:
    """When each choice that has a slot has its first token, somebody still runs.

    Beside one that ends sooner, those that go on have some more by then: the first comes with its end.
    """
    async with Stopwatch() as watch:
        stream = ctx.start(request, is_multiplexed=is_multiplexed)
        going_on = _going_on(request.request)
        count = min(len(going_on), ctx.config.max_num_seqs or 1)
        parts = 1 if len(going_on) == num_choices(request.request) else BESIDE_AN_END
        while _begun(stream, going_on, parts) < count and await anext(stream.call, None) is not None:
            pass
        if (await ctx.client.load()).running:
            stream.cancel()
            return True
        await stream.ok()
    gathered = f"{len(stream.tokens)} tokens came in one message{beside}"
    expect(len(stream.outputs) > count, gathered, expected="several")
    return watch.seconds < VISIBLE_SECONDS


def _going_on(body: pb.PreprocessedRequest) -> set[int]:
    """The choices that have most of their tokens to come."""
    most = body.stop_conditions.max_tokens
    had = {each.index: len(each.generated_token_ids) for each in body.resume.choices}
    return {index for index in range(num_choices(body)) if had.get(index, 0) < most / 2}


def _begun(stream: Stream, indices: set[int], parts: int) -> int:
    """How many of these choices have come in so many parts."""
    choices = stream.choices
    return sum(len(choices[index].outputs) >= parts for index in indices & choices.keys())


@check("STR-11", variant="multiplexed", gate="multiplexed", needs=("STR-11", "MUX-01"), alone=True)
async def handles_are_streamed(ctx: Context) -> None:
    """The same on a stream whose first requests allowed that their tokens are gathered."""
    for _ in range(ATTEMPTS):
        if await _is_streamed_behind_others(ctx):
            return
    raise Violation("the first token comes when the answer is complete", expected="Load.running 1", seen=0)


async def _is_streamed_behind_others(ctx: Context) -> bool:
    async with open_stream(ctx) as stream, Stopwatch() as watch:
        others = ctx.unlike(lambda: ctx.request(stream_interval=GATHERED), OTHERS)
        for number, request in enumerate(others, 1):
            stream.submit(number, request)
            await stream.until_ended(number)
        stream.submit(0, ctx.lasting_request(ANSWER_SECONDS))
        await stream.until(lambda: bool(stream.handle(0).tokens))
        if (await ctx.client.load()).running:
            return True
        await stream.until_ended(0)
    count, tokens = len(stream.handle(0).outputs), len(stream.handle(0).tokens)
    expect(count > 1, f"{tokens} tokens came in one output", expected="several")
    return watch.seconds < VISIBLE_SECONDS
