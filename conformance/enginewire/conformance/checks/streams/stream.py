"""STR: the shape of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import SHORT, open_stream
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.company import Company, draw
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.features import FEATURES, SERVED_ALONE
from enginewire.conformance.session.invalid_requests import failed_later
from enginewire.conformance.session.requests import Value, change
from enginewire.conformance.session.saturation import saturated
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stopwatch import Stopwatch, within
from enginewire.conformance.wire.stream import Stream, num_choices, reason_name
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

TOKENS: Final = 16
CONCURRENT: Final = 16
ATTEMPTS: Final = 3
ANSWER_SECONDS: Final = 1.0
ABORTED_SECONDS: Final = 1.0

GATHERED: Final = 2**20
"""Tokens that an engine may gather: more than any answer has."""
OTHERS: Final = 3
PARTS: Final = 4
"""Of an answer, so that it is a long one."""
WAITING: Final = frozenset({"best_of", "beam_search"})
"""What an answer is chosen with when all of them are complete."""

TIMED: Final = ("STR-09", "SEQ-02", "MUX-01")
ACCEPTED: Final = (*SHAPE, "STR-12", "MUX-01", "MUX-03")

WHILE: Final = 0.125
"""Of the reaction bound: within so much does a server say that it has accepted a request."""

VISIBLE_SECONDS: Final = 0.1
"""Shorter than this, when something came says more about this machine than about the target."""


@check("STR-01")
async def sends_something(ctx: Context) -> None:
    """A small request."""
    stream = await _observed(ctx)
    expect(stream.responses, "a Generate that ended with OK sent no message", expected="at least 1", seen=0)


@check("STR-02", needs=("STR-01",))
async def one_terminal(ctx: Context) -> None:
    """A small request."""
    stream = await _observed(ctx)
    count = len([output for output in stream.terminals if output.index == 0])
    expect_equal(count, 1, "choice 0 does not have exactly one terminal output")


@check("STR-03", needs=("STR-02",))
async def nothing_after_the_terminal(ctx: Context) -> None:
    """A small request."""
    stream = await _observed(ctx)
    late = [output for choice in stream.choices.values() for output in choice.late]
    expect(not late, "outputs of a choice came after its terminal", expected="none", seen=len(late))


@check("STR-04", needs=("STR-02", "STR-03"))
async def an_empty_terminal_is_sent(ctx: Context) -> None:
    """An abort after the first token: what ends the choice has no token of its own."""
    stream = await _aborted(ctx)
    if stream.exchange.is_ok:
        expect(stream.choice.terminal, "an aborted choice ended without a terminal output")


@check("STR-05", needs=("STR-02",))
async def ids_are_deltas(ctx: Context) -> None:
    """No message repeats what came before it."""
    outputs = [list(output.token_ids) for output in (await _observed(ctx)).choice.outputs if output.token_ids]
    chain = [len(late) > len(early) and late[: len(early)] == early for early, late in pairwise(outputs)]
    total = sum(map(len, outputs))
    asked = _asked(await _observed(ctx))
    repeats = len(chain) > 1 and all(chain) and total > asked
    expect(not repeats, "token_ids are cumulative", expected=f"{asked} ids", seen=f"{total} ids")


@check("STR-06", needs=("STR-05",))
async def positions_have_no_gaps(ctx: Context) -> None:
    """Positions count the tokens, and none is missing at the end."""
    stream = await _observed(ctx)
    position = 0
    for output in stream.choice.outputs:
        expect_equal(
            output.first_output_position, position, "first_output_position does not count the tokens"
        )
        position += len(output.token_ids)
    if stream.choice.finish_reason == pb.FINISH_REASON_LENGTH:
        expect(position >= _asked(stream), "tokens are missing", expected=_asked(stream), seen=position)


@check("STR-07", needs=("STR-01",))
async def ids_are_returned(ctx: Context) -> None:
    """Many requests at once, each with an id of its own, and with whatever events there are."""
    count, prompts = ctx.tokens(8), [ctx.prompt(salt=salt) for salt in range(CONCURRENT)]
    asked = list(ctx.capabilities.annotations)[:CONCURRENT]
    requests = [ctx.request(token_ids=each, max_tokens=count, annotations=asked) for each in prompts]
    for stream in await asyncio.gather(*(ctx.generate(request) for request in requests)):
        for response in stream.responses:
            expect_equal(
                response.request_id, stream.request.request_id, "a message carries another request_id"
            )


@check("STR-08", needs=("STR-02",))
async def messages_are_not_empty(ctx: Context) -> None:
    """What does not end a choice brings a token."""
    outputs = (await _observed(ctx)).outputs
    empty = [
        number for number, output in enumerate(outputs) if not (output.token_ids or output.finish_reason)
    ]
    expect(not empty, "outputs carry neither a token nor a finish_reason", seen=f"outputs {empty}")


@check("STR-09", needs=("STR-02", "STR-04"))
async def ends_in_one_way(ctx: Context) -> None:
    """An aborted request has its terminal or a status, not both."""
    stream = await _aborted(ctx)
    both = bool(stream.choice.terminal) and not stream.exchange.is_ok
    expect(not both, "every choice had its terminal, and the status is not OK", seen=stream.exchange.status)


@check("STR-09", variant="failed", needs=("STR-02", "STR-09"))
async def failures_are_no_ends_of_choices(ctx: Context) -> None:
    """Of a request that fails after its first token."""
    stream = await failed_later(ctx)
    both = bool(stream.choice.terminal) and not stream.exchange.is_ok
    expect(not both, "every choice had its terminal, and the status is not OK", seen=stream.exchange.status)


@check("STR-09", variant="multiplexed", gate="multiplexed", phase=Phase.LOAD, needs=TIMED, alone=True)
async def timeouts_are_no_ends_of_choices(ctx: Context) -> None:
    """Of a request with several, all of which run when its time is over."""
    async with open_stream(ctx) as stream:
        several = {"n": ctx.choices(2)} if ctx.choices(2) > 1 else {}
        stream.submit(1, ctx.long_request(**several), timeout=SHORT)
        stream.half_close()
        with suppress(TimeoutError):
            await within(SHORT + ctx.bounds.reaction, stream.finish())
    handle = stream.handle(1)
    late = [part.status for part in handle.late if isinstance(part, pb.HandleEvent)]
    statuses = [status for status in (handle.status, *late) if status and status.code]
    both = len(handle.terminals) >= handle.choices and bool(statuses)
    expect(not both, "every choice had its terminal, and the status is not OK", seen=statuses)


@check("STR-10", needs=("STR-02",))
async def reasons_are_known(ctx: Context) -> None:
    """A small request."""
    for terminal in (await _observed(ctx)).terminals:
        known = terminal.finish_reason in pb.FinishReason.values()
        expect(known, "the contract names no such finish_reason", seen=reason_name(terminal.finish_reason))


@check("STR-11", needs=SHAPE, alone=True)
async def tokens_are_streamed(ctx: Context) -> None:
    """When the first token of a long answer is here, the engine is still at it.

    Again, where it was not: this machine may have stalled. Nothing that gathers first ever passes.
    """
    await _require_streamed(ctx, lambda: ctx.lasting_request(ANSWER_SECONDS))


@check("STR-11", variant="options", needs=(*SHAPE, "STR-11", "INF-09"), alone=True, in_company=False)
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
    # Everybody is in one of the two.
    for company in (draw(ctx.session.options.seed, number, ctx.config) for number in (0, 1)):
        yield str(company), partial(_joined, company, lasting)


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
    """When each choice that has a slot has its first token, somebody still runs."""
    async with Stopwatch() as watch:
        stream = await ctx.start(request, is_multiplexed=is_multiplexed).first_token()
        count = min(num_choices(stream.request.request), ctx.config.max_num_seqs or 1)
        while len(stream.choices) < count and await anext(stream.call, None) is not None:
            pass
        if (await ctx.client.load()).running:
            stream.cancel()
            return True
        await stream.ok()
    gathered = f"{len(stream.tokens)} tokens came in one message{beside}"
    expect(len(stream.outputs) > count, gathered, expected="several")
    return watch.seconds < VISIBLE_SECONDS


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


@check("STR-12", phase=Phase.LOAD, needs=SHAPE, alone=True)
async def acceptance_does_not_wait(ctx: Context) -> None:
    """A request that waits for a slot has its initial metadata while all slots are taken."""
    async with saturated(ctx) as running:
        stream = ctx.start(ctx.request())
        accepted = asyncio.ensure_future(stream.call.accepted())
        is_early = await _comes_first(ctx, running, accepted.done)
    if not await accepted:
        raise NotApplicable("a request that has to wait is refused here")
    expect(is_early, "the initial metadata waits for the first token", expected="at acceptance")


@check("STR-12", variant="multiplexed", gate="multiplexed", phase=Phase.LOAD, needs=ACCEPTED, alone=True)
async def multiplexed_acceptance_does_not_wait(ctx: Context) -> None:
    """The same over GenerateMultiplexed, where Accepted says it."""
    async with saturated(ctx) as running, open_stream(ctx) as stream:
        stream.submit(1, ctx.request())
        reading = asyncio.ensure_future(stream.until(lambda: bool(_said(stream))))
        try:
            is_early = await _comes_first(ctx, running, reading.done)
            if is_early:
                await reading
        finally:
            await stop([reading])
        if stream.handle(1).status:
            raise NotApplicable("a request that has to wait is refused here")
        expect(is_early, "Accepted waits for the first token", expected="at acceptance")


async def _comes_first(ctx: Context, running: Sequence[Stream], has_come: Callable[[], bool]) -> bool:
    """Whether something comes within a while, and before a slot is free; NotApplicable when one is before."""
    looks = Looks(WHILE * ctx.bounds.reaction)
    while not has_come():
        # Not before that answer: on a busy machine both may have been on their way.
        if (await ctx.client.load()).running < len(running) and not has_come():
            raise NotApplicable("the slots are free again before a request can be seen to wait")
        if looks.are_over():
            break
        await pause()
    return has_come()


def _said(stream: Multiplexed) -> object:
    return stream.handle(1).accepted or stream.handle(1).status


async def _observed(ctx: Context) -> Stream:
    """One plain request of some tokens, read once for all checks of this area."""

    count = ctx.tokens(TOKENS)

    async def observe() -> Stream:
        return await ctx.generate(ctx.request(max_tokens=count))

    stream = await ctx.once("stream", observe)
    ctx.show(stream.exchange)
    return stream


def _asked(stream: Stream) -> int:
    return stream.request.request.stop_conditions.max_tokens


async def _aborted(ctx: Context) -> Stream:
    # Not for long: where Abort does nothing, others want the slot.
    stream = await ctx.start(ctx.lasting_request(ABORTED_SECONDS)).first_token()
    await ctx.client.abort([stream.request.request_id])
    return await stream.end()
