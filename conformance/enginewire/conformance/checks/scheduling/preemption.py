"""What becomes of requests from which an engine takes the memory while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import WHOLE, CheckFunction, Phase, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.saturation import beyond_memory, short_of_memory
from enginewire.conformance.wire.over_a_stream import CallOverStream
from enginewire.conformance.wire.stream import Choice, Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

SALT: Final = "short of memory"
SALTED: Final = 4
"""Of the last requests, so many are sent once more without it."""
SAME: Final = 1e-3
"""What rounding may make of a sum."""

CHOICES: Final = 2
INTERVAL: Final = 4
LEAVING: Final = 7
"""One in so many requests leaves early."""
JUDGED: Final = 2
"""Of the last requests, at least: one with seeds, and a penalised one."""

HOT: Final = 100.0
"""Tokens are about equally probable: random numbers alone say which of them come, whatever is rounded."""
LAST: Final = 4
"""The last part of an answer, of so many: who gave up its memory by then goes on with the same numbers."""
ALIKE: Final = 0.5
"""Of the tokens there; with other random numbers hardly any is the same."""

PENALISED: Final = (1, 3)
"""Of the requests, from the last one on: those between have seeds."""
PENALTY: Final = 2.0
BIAS: Final = 100.0
LEAD: Final = 4
"""The part of an answer, of so many, by which a token comes more often than another before a penalty is even
with its bias."""
APART: Final = 4
"""The part of that lead, of so many, by which it may differ: what a model prefers is small beside it."""


def check_where_memory_is_short(identifier: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register what holds also of a request that gives up its memory."""
    needs = (*WHOLE, identifier, "INF-07")
    return check(identifier, variant="preempted", phase=Phase.LOAD, alone=True, costly=True, needs=needs)


@check_where_memory_is_short("CON-02")
async def tokens_do_not_change_where_memory_is_short(ctx: Context) -> None:
    """Of all requests at once, of which one has to give up its memory, and of each of them alone.

    Some leave half-way: whoever gave up its memory has it again by that, to lose it once more.
    """
    wanted = _of_all_kinds(ctx)
    async with short_of_memory(ctx, wanted) as streams:
        await _half_of(streams[0])
        for stream in (leaving := streams[: len(streams) // LEAVING]):
            stream.cancel()
    staying = streams[len(leaving) :]
    for stream in staying:
        seen = sum(len(choice.tokens) for choice in (await stream.ok()).choices.values())
        tokens = num_choices(stream.request.request) * stream.request.request.stop_conditions.max_tokens
        expect_equal(seen, tokens, "a request has not all its tokens where memory is short")
    # Memory is taken from the last, as a rule.
    least = min(JUDGED, len(wanted))
    last = ctx.times(len(staying), wanted[-1].request.stop_conditions.max_tokens, least=least)
    judged = [stream for stream in staying[-last:] if _is_foretold(stream)]
    alone = [await ctx.generate(_again(ctx, stream.request)) for stream in judged]
    room = judged[-(len(wanted) // 2) :]
    beside = await asyncio.gather(*(ctx.generate(_again(ctx, stream.request)) for stream in room))
    if not all(map(_are_alike, beside, alone[-len(room) :])):
        raise NotApplicable("the same requests have other tokens in another batch")
    for calm, stream in zip(alone, judged, strict=True):
        message = "the same request has other tokens where memory is short"
        expect(_are_alike(stream, calm), message, expected=_tokens(calm), seen=_tokens(stream))


@check_where_memory_is_short("INF-13")
async def who_gave_up_memory_waits(ctx: Context) -> None:
    """All are counted: those that run, and the one that waits for memory."""
    seen = await _all_at_once(ctx)
    if seen.live < len(seen.streams):
        raise NotApplicable("a request has ended before its load can be seen")
    message = "a request without memory neither runs nor waits"
    expect_equal(seen.load.running + seen.load.waiting, seen.live, message)


@check_where_memory_is_short("USE-06")
async def what_is_computed_again_was_not_cached(ctx: Context) -> None:
    """Nobody has sent these prompts before: what can be found of one is what another one begins with."""
    streams = (await _all_at_once(ctx)).streams
    prompts = [stream.request.request.token_ids for stream in streams]
    for number, stream in enumerate(streams):
        others = prompts[:number] + prompts[number + 1 :]
        most = max(requests.num_alike(prompts[number], other) for other in others)
        cached = (await stream.ok()).usage.prompt_tokens_details.cached_tokens
        message = "a prompt that nobody sent before has cached tokens where memory is short"
        expect(cached <= most, message, expected=f"at most {most}", seen=cached)


@check_where_memory_is_short("STR-08")
async def who_gives_up_memory_sends_nothing_empty(ctx: Context) -> None:
    """Neither then nor when it goes on."""
    for stream in (await _all_at_once(ctx)).streams:
        for output in (await stream.ok()).outputs:
            is_empty = not (output.token_ids or output.finish_reason)
            expect(not is_empty, "an output has neither a token nor a finish_reason where memory is short")


@check_where_memory_is_short("MUX-03")
async def who_gave_up_memory_is_accepted_once(ctx: Context) -> None:
    """And not again when it goes on."""
    for stream in (await _all_at_once(ctx)).streams:
        call = (await stream.ok()).call
        if isinstance(call, CallOverStream):
            message = "a request was not accepted exactly once where memory is short"
            expect_equal(call.num_accepted, 1, message)


@check_where_memory_is_short("SAM-13")
async def only_allowed_ids_come_where_memory_is_short(ctx: Context) -> None:
    """Two of them."""
    for stream in (await _all_at_once(ctx)).streams:
        allowed = stream.request.request.sampling_options.allowed_token_ids
        others = [token for token in (await stream.ok()).tokens if token not in allowed]
        message = "a token that is not allowed comes where memory is short"
        expect(not others, message, expected=allowed, seen=others[:1])


@check_where_memory_is_short("SAM-14")
async def bad_words_do_not_come_where_memory_is_short(ctx: Context) -> None:
    """One token has a bias, and is a bad word behind each token that may come."""
    for stream in (await _all_at_once(ctx)).streams:
        bad = {tuple(word.token_ids) for word in stream.request.request.sampling_options.bad_words_token_ids}
        came = [pair for pair in pairwise((await stream.ok()).tokens) if pair in bad]
        expect(not came, "a bad word comes where memory is short", expected="none", seen=came[:1])


@check_where_memory_is_short("EVT-02")
async def nothing_is_told_unasked_where_memory_is_short(ctx: Context) -> None:
    """No event says that a request gave up its memory."""
    for stream in (await _all_at_once(ctx)).streams:
        asked = stream.request.request.annotations
        unasked = [event.event for event in (await stream.ok()).events if event.event not in asked]
        message = "a request got an event that it did not ask for where memory is short"
        expect(not unasked, message, expected=asked, seen=unasked)


@check_where_memory_is_short("LOG-10")
async def the_sum_runs_where_memory_is_short(ctx: Context) -> None:
    """To the end."""
    for stream in (await _all_at_once(ctx)).streams:
        total = 0.0
        for output in (await stream.ok()).outputs:
            total += sum(output.logprobs.token_logprobs)
            close = isclose(output.cum_log_probs, total, rel_tol=SAME, abs_tol=SAME)
            message = "cum_log_probs is not the sum of all token_logprobs where memory is short"
            is_told = not stream.request.request.HasField("resume")
            expect(close or not is_told, message, expected=f"{total:.4f}", seen=f"{output.cum_log_probs:.4f}")


@check_where_memory_is_short("RES-06")
async def positions_go_on_where_memory_is_short(ctx: Context) -> None:
    """Behind what was handed in."""
    for stream in (await _all_at_once(ctx)).streams:
        position = sum(len(each.generated_token_ids) for each in stream.request.request.resume.choices)
        for output in (await stream.ok()).outputs:
            message = "first_output_position does not go on where memory is short"
            expect_equal(output.first_output_position, position, message)
            position += len(output.token_ids)


@check_where_memory_is_short("USE-07")
async def salts_part_the_cache_where_memory_is_short(ctx: Context) -> None:
    """Nobody has sent the prompts without a salt before. Memory is taken from the last, as a rule."""
    streams = (await _all_at_once(ctx)).streams
    for stream in reversed(streams[-SALTED:]):
        await stream.ok()
        prompt = stream.request.request.token_ids
        plain = await ctx.generate(ctx.request(token_ids=prompt, max_tokens=1))
        cached = plain.usage.prompt_tokens_details.cached_tokens
        message = "a request without cache_salt shares what one with it has cached where memory is short"
        expect_equal(cached, 0, message)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Requests that have ended, and how many of them lived when the load was seen."""

    streams: list[Stream]
    load: pb.Load
    live: int


async def _all_at_once(ctx: Context) -> _Seen:
    """Requests of which one has to give up its memory; made once, shown by whoever looks at it."""
    seen = await ctx.once("short of memory", lambda: _observed(ctx))
    for stream in seen.streams:
        ctx.show(stream.exchange)
    return seen


async def _observed(ctx: Context) -> _Seen:
    options = _beside(ctx)
    wanted = [requests.change(request, **options) for request in beyond_memory(ctx)]
    if ctx.capabilities.resume:
        resume = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=ctx.prompt(2)[1:])], attempt=1)
        wanted[::2] = [requests.change(request, resume=resume) for request in wanted[::2]]
    async with short_of_memory(ctx, wanted, multiplexed=len(wanted) // 2) as streams:
        load = await ctx.client.load()
        live = sum(stream.choice.terminal is None for stream in streams)
    return _Seen(streams, load, live)


@check_where_memory_is_short("ABO-01")
async def who_gave_up_memory_can_be_aborted(ctx: Context) -> None:
    """All are aborted while one waits for memory, and nothing is left of it."""
    async with short_of_memory(ctx, beyond_memory(ctx)) as streams:
        results = await ctx.client.abort([stream.request.request_id for stream in streams])
    for stream, result in zip(streams, results, strict=True):
        reason = (await stream.ok()).choice.reason_name
        if result.outcome != pb.ABORT_OUTCOME_FINISHED:
            expect_equal(reason, "CANCELLED", "an abort passes over a request that gave up its memory")
    await ctx.idle()


def _beside(ctx: Context) -> dict[str, Value]:
    """What has to hold on when memory is lost, as far as the engine offers it.

    One of two tokens comes first if any, and the other from then on: the first one is a bad word behind both.
    """
    can, (first, other) = ctx.capabilities, ctx.prompt(2)
    options: dict[str, Value] = {"cache_salt": SALT, "annotations": can.annotations[:1]}
    if can.logprobs:
        options["logprobs"] = 0
    if can.allowed_token_ids:
        options["allowed_token_ids"] = [first, other]
    if can.bad_words:
        options["bad_words_token_ids"] = [
            pb.TokenSequence(token_ids=[each, first]) for each in (first, other)
        ]
    if can.logit_bias:
        options["logit_bias"] = [pb.LogitBias(token_id=first, bias=BIAS)]
    return options


def _of_all_kinds(ctx: Context) -> list[pb.GenerateRequest]:
    """Most draw with a seed, one of them for several choices; of some a penalty decides which token comes.

    Each as far as the engine can. Every other one, the last among them, gets several tokens at a time.
    """
    can = ctx.capabilities
    rows: dict[str, Value] = {"logprobs": 0} if can.logprobs else {}
    wanted = beyond_memory(ctx, ctx.choices(CHOICES) if can.seed else 1)
    has_penalty = can.penalties and can.logit_bias and can.allowed_token_ids
    made = list[pb.GenerateRequest]()
    for number, request in enumerate(reversed(wanted)):
        if has_penalty and number in PENALISED:
            options = _penalised(ctx, request)
        else:
            options = {"seed": number, "temperature": HOT} if can.seed else {}
        gathered: dict[str, Value] = {} if number % 2 else {"stream_interval": INTERVAL}
        made.insert(0, requests.change(request, **rows, **options, **gathered))
    return made


async def _half_of(stream: Stream) -> None:
    """Wait until it has half of its tokens, or has ended. Somebody else reads it."""
    half = stream.request.request.stop_conditions.max_tokens // 2
    while len(stream.tokens) < half and stream.exchange.code is None:
        await pause()


def _penalised(ctx: Context, request: pb.GenerateRequest) -> dict[str, Value]:
    """One of two tokens comes alone until its penalty is even with its bias, then the two take turns.

    The prompt has it at nearly every place, which is nothing to this penalty.
    """
    favoured, other = ctx.prompt(2)
    bias = min(PENALTY * request.request.stop_conditions.max_tokens / LEAD, BIAS)
    first, *rest = request.request.token_ids
    return {
        "token_ids": [first, *[favoured] * len(rest)],
        "frequency_penalty": PENALTY,
        "logit_bias": [pb.LogitBias(token_id=favoured, bias=bias)],
        "allowed_token_ids": [favoured, other],
    }


def _is_foretold(stream: Stream) -> bool:
    """Whether rounding hardly counts."""
    options = stream.request.request.sampling_options
    return options.HasField("seed") or options.HasField("frequency_penalty")


def _are_alike(one: Stream, other: Stream) -> bool:
    """Up to rounding, and what follows from it."""
    options = one.request.request.sampling_options
    if not options.HasField("frequency_penalty"):
        return all(map(_ends_alike, _tokens(one), _tokens(other)))
    (favoured,) = options.logit_bias
    counts = [stream.tokens.count(favoured.token_id) for stream in (one, other)]
    return abs(counts[0] - counts[1]) <= favoured.bias / options.frequency_penalty / APART


def _ends_alike(one: Sequence[int], other: Sequence[int]) -> bool:
    last = -max(len(other) // LAST, 1)
    same = [a == b for a, b in zip(one[last:], other[last:], strict=False)]
    return sum(same) >= ALIKE * len(same)


def _tokens(stream: Stream) -> list[list[int]]:
    """Of each choice."""
    choices = stream.choices
    return [choices.get(index, Choice(index)).tokens for index in range(num_choices(stream.request.request))]


def _again(ctx: Context, request: pb.GenerateRequest) -> pb.GenerateRequest:
    """The same under another id."""
    return requests.change(request, request_id=ctx.request().request_id)
