"""BPR: readers that stall.

A stalled reader is a call on a connection with a window of a kilobyte that nobody reads: the server can
send some tens of messages, then has to keep the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.sizes import most_alternatives, most_choices
from enginewire.conformance.session.watching import until
from enginewire.conformance.wire.connection import NARROW
from enginewire.conformance.wire.stream import Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

FEWEST: Final = 128
"""Fewer tokens than this may all be on their way before the window is full."""

MOST: Final = 256
BUFFERED: Final = 2**16
"""Bytes of a stream that gRPC itself takes from an engine before it lets it wait for a reader."""
ALTERNATIVES: Final = 20
STALLED: Final = 3
NEIGHBOUR_TOKENS: Final = 32
NOTICED_SECONDS: Final = 1.1
"""The contract's own: a server looks for stalled readers at least once a second."""


@check("BPR-01", needs=(*WHOLE, "SAM-01"), phase=Phase.LOAD, alone=True)
async def a_pause_loses_nothing(ctx: Context) -> None:
    """Everything is generated while nobody reads; then it is read and compared, up to a stop id."""
    count = min(max(ctx.bounds.tokens_in(2.0), FEWEST), MOST, _buffer(ctx) // 2, _room(ctx))
    _require_speed(ctx)
    read_at_once = await ctx.generate(ctx.request(max_tokens=count))
    stop = _ending(read_at_once.tokens)
    ended = read_at_once.tokens.index(stop) + 1 if stop is not None else count
    ends: dict[str, Value] = {"stop_token_ids": [stop]} if stop is not None else {}
    (stream,) = await _stalled(ctx, ctx.request(max_tokens=count, **_wordy(ctx), **ends))
    await _settled(ctx)
    await stream.ok()
    position = 0
    for output in stream.choice.outputs:
        expect_equal(output.first_output_position, position, "tokens are lost or out of order after a pause")
        position += len(output.token_ids)
    expect_equal(position, ended, "a reader that paused did not get every token")
    expect_equal(stream.tokens, read_at_once.tokens[:ended], "a reader that paused got other tokens")
    if stop is not None:
        terminal = stream.choice.terminal or pb.LLMEngineOutput()
        message = "a reader that paused does not learn which stop id ended the choice"
        expect_equal(terminal.stop_match.token_id, stop, message)


@check("BPR-02", needs=(*SHAPE, "CON-01"), phase=Phase.LOAD, alone=True)
async def others_go_on(ctx: Context) -> None:
    """A small request beside several stalled readers, compared with the same request alone."""
    slots = ctx.config.max_num_seqs if ctx.config.HasField("max_num_seqs") else STALLED + 1
    if slots < 2:
        raise NotApplicable("max_num_seqs is 1")
    alone = await _seconds(ctx)
    long = (ctx.long_request(**_wordy(ctx)) for _ in range(min(STALLED, slots - 1)))
    stalled = await _stalled(ctx, *long, buffered=BUFFERED)
    bound = 4 * alone + ctx.bounds.reaction
    beside = await _seconds(ctx, timeout=2 * bound)
    if beside > bound:
        # The machine may be slower than it was before: only then is this one slow as well.
        for stream in stalled:
            stream.cancel()
        bound = max(bound, 4 * await _seconds(ctx) + ctx.bounds.reaction)
    message = "a request is slower beside readers that stall"
    expect(beside <= bound, message, expected=f"at most {bound:.2f} s", seen=f"{beside:.2f} s")


@check("BPR-03", needs=SHAPE, phase=Phase.LOAD, alone=True, costly=True)
async def buffers_are_bounded(ctx: Context) -> None:
    """An answer of several buffers for nobody: it has to pause, or to end as SLOW_CONSUMER."""
    choices, bound = _choices(ctx)
    tokens = 2 * bound // choices
    if ctx.bounds.tokens_in(ctx.bounds.check / 2) < tokens:
        raise NotApplicable("the target is too slow to fill its buffer in time")
    before = (await ctx.idle()).tokens_generated
    changes = {"n": choices} if choices > 1 else {}
    (stream,) = await _stalled(ctx, ctx.request(max_tokens=tokens, **changes))
    generated = (await _settled(ctx)).tokens_generated - before
    if not generated:
        raise NotApplicable("Load.tokens_generated does not count")
    message = "the answer for a reader that stalls is kept without a bound"
    expect(generated <= bound, message, expected=f"at most {bound} tokens", seen=generated)
    if (await ctx.client.load()).running == 0:
        await stream.end()
        _require_slow_consumer(stream)


@check("BPR-04", needs=(*SHAPE, "ABO-01", "CAN-01"), phase=Phase.LOAD, alone=True)
async def stalled_requests_can_be_stopped(ctx: Context) -> None:
    """By cancelling the call, by Abort, and by Abort when every server must have seen the reader stall.

    All three stall at the same time where there are slots for them.
    """
    slots = ctx.config.max_num_seqs if ctx.config.HasField("max_num_seqs") else STALLED
    together = STALLED if slots >= STALLED else 1
    for begin in range(0, STALLED, together):
        long = (ctx.long_request(**_wordy(ctx)) for _ in range(together))
        streams = await _stalled(ctx, *long, buffered=BUFFERED)
        stalled_at = time.monotonic()
        for number, stream in enumerate(streams, begin):
            if number == STALLED - 1:
                await asyncio.sleep(max(stalled_at + NOTICED_SECONDS - time.monotonic(), 0))
            if number:
                await ctx.client.abort([stream.request.request_id])
            else:
                stream.cancel()
            await _only(ctx, streams[number - begin + 1 :])
        await ctx.idle()


async def _only(ctx: Context, streams: Sequence[Stream]) -> None:
    """Wait until no others live."""
    most = sum(num_choices(stream.request.request) for stream in streams)
    message = "a request whose reader has stalled was not stopped"
    await until(ctx, lambda load: load.running + load.waiting <= most, message, expected=f"at most {most}")


def _require_speed(ctx: Context) -> None:
    if ctx.bounds.tokens_in(2 * ctx.bounds.effort) < FEWEST:
        raise NotApplicable(f"the target is too slow to fill the window of a reader with {FEWEST} tokens")


def _ending(tokens: Sequence[int]) -> int | None:
    """The latest token that has not been there before, in the second half of an answer."""
    later = range(len(tokens) // 2, len(tokens))
    return next((tokens[place] for place in reversed(later) if tokens[place] not in tokens[:place]), None)


def _wordy(ctx: Context) -> dict[str, Value]:
    """What makes outputs large, so that a few of them fill every buffer."""
    wanted = min(most_alternatives(ctx.config), ALTERNATIVES, ctx.config.vocab_size)
    return {"logprobs": wanted} if ctx.capabilities.logprobs else {}


async def _stalled(ctx: Context, *requests: pb.GenerateRequest, buffered: int = 0) -> list[Stream]:
    """Requests whose readers took a first token and nothing more, when each has filled its window.

    However slow that is, or until the engine rests. With so many bytes `buffered` behind it, where the
    target is fast enough.
    """
    _require_speed(ctx)
    load = await ctx.client.load()
    timeout = 2 * ctx.bounds.check
    streams = [ctx.start(request, client=ctx.connect(None, *NARROW), timeout=timeout) for request in requests]
    # Together: one that stalls must not be what keeps the next one from its first token.
    await asyncio.gather(*(stream.first_token() for stream in streams))
    filling = buffered // min(stream.exchange.messages[0].ByteSize() for stream in streams)
    each = filling if FEWEST < filling < ctx.bounds.tokens_in(ctx.bounds.effort) else FEWEST
    enough = load.tokens_generated + each * len(requests)
    grew_at = time.monotonic()
    while load.tokens_generated < enough and time.monotonic() < grew_at + ctx.bounds.reaction:
        await pause()
        now = await ctx.client.load()
        if not now.running:
            break
        if now.tokens_generated != load.tokens_generated:
            grew_at = time.monotonic()
        load = now
    return streams


async def _settled(ctx: Context) -> pb.Load:
    """The load once the engine rests: it is idle, or has generated nothing for a while."""
    load = await ctx.client.load()
    rested_at = time.monotonic()
    while load.running and time.monotonic() < rested_at + ctx.bounds.reaction / 2:
        await pause()
        now = await ctx.client.load()
        if now.tokens_generated != load.tokens_generated:
            rested_at = time.monotonic()
        load = now
    return load


async def _seconds(ctx: Context, timeout: float = 0) -> float:
    """How long a small request takes, at most a `timeout`."""
    stream = await ctx.start(ctx.request(max_tokens=ctx.tokens(NEIGHBOUR_TOKENS)), timeout=timeout).end()
    if not timeout or stream.exchange.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
        await stream.ok()
    return (stream.exchange.ended_at or 0.0) - stream.exchange.started_at


def _buffer(ctx: Context) -> int:
    """Tokens that the server keeps for a slow reader; NotApplicable where it does not say."""
    if not ctx.limits.HasField("max_stream_buffer_tokens"):
        raise NotApplicable("Limits.max_stream_buffer_tokens is absent")
    return ctx.limits.max_stream_buffer_tokens


def _room(ctx: Context) -> int:
    return ctx.context_length() - len(ctx.prompt())


def _choices(ctx: Context) -> tuple[int, int]:
    """How many choices it takes to generate twice what may be kept, and how many tokens that is.

    A server need not count every token: it may look at its buffers once a second.
    """
    for choices in range(1, _most_at_once(ctx) + 1):
        bound = 2 * _buffer(ctx) + ctx.bounds.tokens_in(1.0) * choices
        if _room(ctx) * choices >= 2 * bound:
            return choices, bound
    raise NotApplicable("no request of this target is long enough to fill its buffer twice")


def _most_at_once(ctx: Context) -> int:
    """Choices of one request that can all run until the window is full."""
    config, most = ctx.config, most_choices(ctx.config)
    if config.HasField("max_num_seqs"):
        most = min(most, config.max_num_seqs)
    if config.HasField("total_kv_blocks"):
        most = min(most, config.total_kv_blocks * ctx.block_size // ctx.context_length())
    return most


def _require_slow_consumer(stream: Stream) -> None:
    exchange = stream.exchange
    expect(
        exchange.code is grpc.StatusCode.RESOURCE_EXHAUSTED,
        "a request whose reader stalls ended in another way",
        expected="RESOURCE_EXHAUSTED",
        seen=exchange.status,
    )
    reason = exchange.detail.reason if exchange.detail else pb.ERROR_REASON_UNSPECIFIED
    is_named = reason == pb.ERROR_REASON_SLOW_CONSUMER
    expect(is_named, "the reason is another one", expected="SLOW_CONSUMER", seen=exchange.detail)
