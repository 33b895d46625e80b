"""STR: the shape of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import SHORT, open_stream
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.invalid_requests import failed_later
from enginewire.conformance.session.saturation import saturated
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stopwatch import within
from enginewire.conformance.wire.stream import Stream, reason_name
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

TOKENS: Final = 16
CONCURRENT: Final = 16
ABORTED_SECONDS: Final = 1.0

TIMED: Final = ("STR-09", "SEQ-02", "MUX-01")
ACCEPTED: Final = (*SHAPE, "STR-12", "MUX-01", "MUX-03")

WHILE: Final = 0.125
"""Of the reaction bound: within so much does a server say that it has accepted a request."""


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
