"""SEQ: several choices in one request."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import open_stream, require_cancelled
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.context import REFUSALS, Context
from enginewire.conformance.session.requests import Value, change
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal
from enginewire.field_rules import FIELD_RULES

TOKENS: Final = 16
WARM: Final = 2.0
SEED: Final = 7
MOST: Final = 3
CANDIDATES: Final = 2
"""Of each choice that is returned."""
ORDERS: Final = 4
"""Three choices that nobody has sorted are in order once in six times."""
ROUNDING: Final = 0.01
SEVERAL: Final = 20
EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
MANY: Final = 64
"""Choices that are enough to be more than the slots of a small engine."""


@check("SEQ-01", needs=SHAPE)
async def choices_are_named(ctx: Context) -> None:
    """All of them, and no others."""
    stream = await _observed(ctx)
    expected, seen = list(range(_count(ctx))), sorted({output.index for output in stream.outputs})
    expect_equal(seen, expected, "the outputs do not name the choices of their request")


@check("SEQ-02", needs=(*SHAPE, "SEQ-01"))
async def each_choice_ends_once(ctx: Context) -> None:
    """All at max_tokens, then one of them early where a seed tells which tokens come."""
    stream = await _observed(ctx)
    _ends_once(ctx, stream)
    if ctx.capabilities.seed:
        _ends_once(ctx, await _one_early(ctx, stream))


@check(
    "SEQ-02",
    variant="aborted",
    gate="seed",
    needs=(*SHAPE, "STR-04", "STR-09", "SEQ-02", "SEQ-04/seeded", "ABO-01"),
    alone=True,
    not_beside=("n",),
)
async def an_abort_ends_no_choice_again(ctx: Context) -> None:
    """One has ended early when the request is aborted, and the others go on until then."""
    if _at_once(ctx) < _count(ctx):
        raise NotApplicable(f"of {_count(ctx)} choices one waits for the others")
    stops = _of_the_last_alone(await _observed(ctx))
    sampling = {"n": _count(ctx), "temperature": WARM, "seed": SEED}
    stream = ctx.start(ctx.long_request(**sampling, stop_token_ids=stops))
    while not stream.terminals and await anext(stream.call, None) is not None:
        pass
    await ctx.client.abort([stream.request.request_id])
    await stream.end()
    _ends_once(ctx, stream)


@check("INF-09", variant="best-first", gate="best_of", needs=(*SHAPE, "INF-09", "LOG-01", "SEQ-02"))
async def the_best_candidates_come_first(ctx: Context) -> None:
    """By the sums of the log-probabilities of their tokens; and where one of them has ended early."""
    count = ctx.choices(MOST)
    if count < 2 or not ctx.capabilities.logprobs:
        raise NotApplicable("nothing tells of several choices which of them is the best")
    candidates = min(CANDIDATES * count, FIELD_RULES["sampling_options.best_of"].most(ctx.limits))
    tokens = ctx.tokens(8)
    for seed in range(ctx.times(ORDERS, candidates * tokens)):
        sampling = {"temperature": 1.0, "seed": seed} if ctx.capabilities.seed else {"temperature": 1.0}
        request = ctx.request(n=count, best_of=candidates, logprobs=0, max_tokens=tokens, **sampling)
        stream = await ctx.generate(request)
        _come_best_first(stream)
        if ctx.capabilities.seed:
            last = stream.choices[count - 1].tokens[: tokens // 2]
            again = change(request, request_id=ctx.request().request_id, stop_token_ids=last[-1:])
            _come_best_first(await ctx.generate(again))


@check("SEQ-03", needs=(*SHAPE, "USE-01", "USE-02", "USE-03", "SEQ-02"))
async def usage_is_of_all_choices(ctx: Context) -> None:
    """The prompt once, the tokens of all."""
    stream = await _observed(ctx)
    sent = sum(len(choice.tokens) for choice in stream.choices.values())
    prompt = len(stream.request.request.token_ids)
    expect_equal(stream.usage.prompt_tokens, prompt, "prompt_tokens does not count the prompt once")
    expect_equal(stream.usage.completion_tokens, sent, "completion_tokens is not that of all choices")
    expect_equal(stream.usage.total_tokens, prompt + sent, "total_tokens is no sum")


@check("SEQ-04", needs=(*SHAPE, "SEQ-02"))
async def choices_differ(ctx: Context) -> None:
    """Each from each other."""
    outputs = _tokens(await _observed(ctx))
    differ = len(set(outputs)) == len(outputs)
    message = f"choices at temperature {WARM:g} are the same"
    expect(differ, message, expected="other tokens in each", seen=[list(output) for output in outputs])


@check("SEQ-04", variant="many", needs=(*SHAPE, "SEQ-02", "SEQ-04"), alone=True, not_beside=("n",))
async def many_choices_differ(ctx: Context) -> None:
    """As many as fit the slots, and more than the 16 for which some engines keep a fixed place."""
    count = min(SEVERAL, _most(ctx), _slots(ctx))
    if count <= MOST:
        raise NotApplicable(f"a request has at most {count} choices at a time")
    outputs = _tokens(await ctx.generate(_request(ctx, n=count)))
    same = len(outputs) - len(set(outputs))
    expect(not same, f"of {count} choices some are the same", expected="other tokens in each", seen=same)


@check(
    "SEQ-04",
    variant="more-than-slots",
    needs=(*SHAPE, "SEQ-02", "SEQ-03", "SEQ-04", "SEQ-04/many"),
    alone=True,
)
async def choices_without_a_slot_differ(ctx: Context) -> None:
    """One more than there are slots: it waits for one, and has a whole answer of its own."""
    count = _one_too_many(ctx)
    request = ctx.request(n=count, temperature=WARM, max_tokens=ctx.tokens(TOKENS))
    wanted = request.request.stop_conditions.max_tokens
    outputs = _tokens(await ctx.generate(request))
    lengths = [len(output) for output in outputs]
    expect_equal(lengths, [wanted] * count, "choices beyond the slots do not have all their tokens")
    expect_equal(len(set(outputs)), count, "choices beyond the slots repeat those that had one")


@check("SEQ-04", variant="seeded", gate="seed", needs=(*SHAPE, "SEQ-02", "SAM-02"), alone=True)
async def seeds_repeat_all_choices(ctx: Context) -> None:
    """Twice the same request."""
    first, again = [_tokens(await ctx.generate(_request(ctx, seed=SEED))) for _ in range(2)]
    expect_equal(again, first, "a seed does not reproduce all choices")


@check("SEQ-05", needs=(*SHAPE, "STR-04", "STR-09", "SEQ-02", "ABO-01"), alone=True)
async def an_abort_ends_all(ctx: Context) -> None:
    """A terminal CANCELLED for each, and nothing is held."""
    await _aborted(ctx, await _running(ctx))
    await ctx.idle()


@check("SEQ-05", variant="cancelled", phase=Phase.LOAD, needs=(*SHAPE, "SEQ-01", "CAN-01"), alone=True)
async def a_cancelled_call_frees_all(ctx: Context) -> None:
    """A caller that goes away."""
    (await _running(ctx)).cancel()
    await ctx.idle()


@check(
    "SEQ-05",
    variant="more-than-slots",
    phase=Phase.LOAD,
    needs=(*SHAPE, "SEQ-05/cancelled", "SEQ-04/more-than-slots"),
    alone=True,
)
async def those_without_a_slot_end_too(ctx: Context) -> None:
    """One waits for a slot when the caller goes away, or when the request is aborted.

    Another request has the slot next.
    """
    count = _one_too_many(ctx)
    for has_gone in (True, False):
        stream = ctx.start(ctx.long_request(n=count, temperature=WARM))
        try:
            await _begun(stream, count - 1)
        except Violation:
            _require_memory(stream.exchange.code is EXHAUSTED)
            raise
        if has_gone:
            stream.cancel()
        else:
            await _aborted(ctx, stream)
        await _is_free(ctx)


@check(
    "SEQ-05",
    variant="more-than-slots-multiplexed",
    gate="multiplexed",
    phase=Phase.LOAD,
    needs=(*SHAPE, "SEQ-05/more-than-slots", "MUX-07"),
    alone=True,
)
async def those_without_a_slot_end_with_their_handle(ctx: Context) -> None:
    """The same where a handle is aborted."""
    count = _one_too_many(ctx)
    async with open_stream(ctx) as stream:
        stream.submit(1, ctx.long_request(n=count, temperature=WARM))
        handle = stream.handle(1)
        await stream.until(lambda: len(handle.by_choice) >= count - 1 or handle.has_ended)
        _require_memory(handle.status is not None and handle.status.code == EXHAUSTED.value[0])
        stream.send(abort=(1,))
        await stream.until_ended(1, within=2 * ctx.bounds.answer)
        require_cancelled(handle)
        await _is_free(ctx)


def _require_memory(is_exhausted: bool) -> None:
    if is_exhausted:
        raise NotApplicable("the memory is too small for so many long choices")


async def _is_free(ctx: Context) -> None:
    """Nothing is held, before and after another request."""
    await ctx.idle()
    await ctx.generate(ctx.request())
    await ctx.idle()


@check("SEQ-06", needs=SHAPE)
async def numbers_are_not_lowered(ctx: Context) -> None:
    """None, too many, and several where there is only one."""
    several = ctx.capabilities.multiple_choices
    codes = (REFUSALS[1],) if several else REFUSALS
    await ctx.rejects({"n": 0})
    await ctx.rejects({"n": _most(ctx) + 1}, codes=codes)
    if not several:
        await ctx.rejects({"n": 2}, codes=codes)


def _most(ctx: Context) -> int:
    return FIELD_RULES["sampling_options.n"].most(ctx.limits)


def _count(ctx: Context) -> int:
    return min(_most(ctx), MOST)


def _slots(ctx: Context) -> int:
    return ctx.config.max_num_seqs if ctx.config.HasField("max_num_seqs") else MANY


def _one_too_many(ctx: Context) -> int:
    """Choices of which one has to wait for a slot. NotApplicable where a request may not have so many."""
    slots = _slots(ctx)
    if slots >= min(_most(ctx), MANY):
        raise NotApplicable(f"{slots} slots are no fewer than the choices that a request may have here")
    return slots + 1


def _at_once(ctx: Context) -> int:
    """Choices that run at the same time. NotApplicable where a second one would wait for the first."""
    if _slots(ctx) == 1:
        raise NotApplicable("max_num_seqs is 1")
    return min(_count(ctx), _slots(ctx))


def _request(ctx: Context, **changes: Value) -> pb.GenerateRequest:
    return ctx.request(**{"n": _count(ctx), "temperature": WARM, "max_tokens": ctx.tokens(TOKENS), **changes})


async def _observed(ctx: Context) -> Stream:
    """One request with several warm choices, read once for all checks of this area."""
    seed = {"seed": SEED} if ctx.capabilities.seed else {}
    request = _request(ctx, **seed)
    stream = await ctx.once("choices", lambda: ctx.generate(request))
    ctx.show(stream.exchange)
    return stream


async def _one_early(ctx: Context, stream: Stream) -> Stream:
    """The same again, and a token that only the last choice brings early ends it."""
    return await ctx.generate(_request(ctx, seed=SEED, stop_token_ids=_of_the_last_alone(stream)))


def _of_the_last_alone(stream: Stream) -> list[int]:
    """The first token that only the last choice brings early, if there is one."""
    *others, last = _tokens(stream)
    unique = [token for token in last[: TOKENS // 2] if not any(token in other for other in others)]
    return unique[:1]


async def _running(ctx: Context) -> Stream:
    """A long request of which each choice has begun."""
    count = _at_once(ctx)
    stream = ctx.start(ctx.long_request(n=count, temperature=WARM))
    await _begun(stream, count)
    return stream


async def _aborted(ctx: Context, stream: Stream) -> None:
    """A terminal CANCELLED for each choice."""
    await ctx.client.abort([stream.request.request_id])
    await stream.end()
    for index in range(stream.request.request.sampling_options.n):
        choice = stream.choices.get(index)
        reason = choice.reason_name if choice else "no output"
        expect_equal(reason, "CANCELLED", f"choice {index} of an aborted request")


async def _begun(stream: Stream, count: int) -> None:
    while len(stream.choices) < count:
        if await anext(stream.call, None) is None:
            raise Violation("the stream ended before each choice began", seen=stream.exchange.status)


def _come_best_first(stream: Stream) -> None:
    sums = [
        sum(value for output in choice.outputs for value in output.logprobs.token_logprobs)
        for _, choice in sorted(stream.choices.items())
    ]
    for better, worse in pairwise(sums):
        message = "the choices of best_of do not come with the most probable first"
        expect(better >= worse - ROUNDING, message, seen=[round(each, 3) for each in sums])


def _ends_once(ctx: Context, stream: Stream) -> None:
    for index in range(_count(ctx)):
        count = sum(output.index == index for output in stream.terminals)
        expect_equal(count, 1, f"choice {index} does not have exactly one terminal output")
        late = stream.choices[index].late
        expect(
            not late, f"outputs of choice {index} came after its terminal", expected="none", seen=len(late)
        )


def _tokens(stream: Stream) -> list[tuple[int, ...]]:
    return [tuple(choice.tokens) for _, choice in sorted(stream.choices.items())]
