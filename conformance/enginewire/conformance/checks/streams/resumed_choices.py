"""RES, SEQ: several choices that go on, each from its own cut."""

from __future__ import annotations

import math
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.resume import (
    FEWEST,
    RESUMED,
    TOKENS,
    are_close,
    cuts,
    log_probs_of,
    resumed,
)
from enginewire.conformance.running.registry import SHAPE, WHOLE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.stream import Choice, Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

SEVERAL: Final = (RESUMED, "SEQ-01", "SEQ-02", "RES-06")
SUMS: Final = (-1.0, -5.0)
"""Of log-probabilities, that are handed in."""


@check(
    "RES-02",
    variant="choices",
    needs=(*SHAPE, *SEVERAL, "RES-02", "SEQ-04/seeded"),
    gate="seed",
    alone=True,
)
async def seeded_choices_go_on(ctx: Context) -> None:
    """Two that differ, each cut elsewhere."""
    await several_go_on(ctx, "seeded", seed=11, temperature=1.0)


@check("RES-03", variant="choices", needs=(*SHAPE, *SEVERAL, "RES-03"), gate="penalties")
async def penalised_choices_go_on(ctx: Context) -> None:
    """What was handed in of the other choice does not count."""
    for name, value in (("presence_penalty", 2.0), ("repetition_penalty", 5.0)):
        await several_go_on(ctx, "penalised", **{name: value})


@check("RES-07", variant="choices", gate="logprobs", needs=(*SHAPE, RESUMED, "RES-07", "SEQ-01", "SEQ-02"))
async def sums_go_on_apart(ctx: Context) -> None:
    """Two choices, each with a sum of its own."""
    if ctx.choices(2) < 2:
        raise NotApplicable("Limits.max_n is 1")
    greedy = await ctx.greedy(TOKENS, least=FEWEST)
    handed_in = greedy.tokens[: len(greedy.tokens) // 2]
    request = resumed(ctx.request(max_tokens=len(greedy.tokens), n=2, logprobs=0), handed_in)
    request.request.resume.choices.add(index=1, generated_token_ids=handed_in)
    for choice, total in zip(request.request.resume.choices, SUMS, strict=True):
        choice.cum_log_probs = total
    stream = await ctx.generate(request)
    for index, total in enumerate(SUMS):
        expected = total + math.fsum(log_probs_of(stream.choices[index]))
        told = [each for each in stream.choices[index].outputs if each.HasField("cum_log_probs")]
        seen = told[-1].cum_log_probs if told else 0.0
        message = f"cum_log_probs of choice {index} does not go on from what was handed in"
        expect(are_close(seen, expected), message, expected=expected, seen=seen)


@check("RES-08", needs=(*WHOLE, "SEQ-01", "SEQ-02", RESUMED), gate="multiple_choices")
async def finished_choices_stay_finished(ctx: Context) -> None:
    """One of two choices is finished, and sends nothing: with its tokens, without them, and when aborted."""
    if ctx.choices(2) < 2:
        raise NotApplicable("Limits.max_n is 1")
    greedy = await ctx.greedy(TOKENS, least=FEWEST)
    for handed_in in (greedy.tokens[:FEWEST], []):
        stream = await ctx.generate(_finished(ctx.request(max_tokens=len(greedy.tokens), n=2), handed_in))
        _is_silent(stream)
        other = stream.choices.get(1, Choice(1))
        expect_equal(other.tokens, greedy.tokens, "a choice that is not named does not start from nothing")
    long = ctx.lasting_request(n=2)
    stream = ctx.start(_finished(long, greedy.tokens[:FEWEST]))
    await anext(stream.call, None)
    await ctx.client.abort([long.request_id])
    _is_silent(await stream.end())


def _finished(request: pb.GenerateRequest, handed_in: list[int]) -> pb.GenerateRequest:
    """The request, whose first choice has ended with these tokens."""
    request = resumed(request, handed_in)
    request.request.resume.choices[0].finished = True
    return request


def _is_silent(stream: Stream) -> None:
    sent = [output for output in stream.outputs if output.index == 0]
    expect(not sent, "a choice that was finished sends something", expected="nothing", seen=sent[:1])


async def several_go_on(ctx: Context, what: str, **changes: Value) -> None:
    """Two choices, undisturbed, then cut in different places; the later one is handed in first.

    And with the first one finished, which the other one does not see.
    """
    if ctx.choices(2) < 2:
        raise NotApplicable("Limits.max_n is 1")
    asked = {"n": 2, "max_tokens": ctx.tokens(TOKENS, least=FEWEST), **changes}
    whole = await ctx.generate(ctx.request(**asked))
    tokens = [whole.choices[index].tokens for index in (0, 1)]
    first, middle, last = cuts(min(map(len, tokens)))
    for ends in ((first, last), (last, middle), (len(tokens[0]), middle)):
        request = ctx.request(**asked)
        for index in (1, 0):
            request.request.resume.choices.add(
                index=index,
                generated_token_ids=tokens[index][: ends[index]],
                finished=ends[index] == len(tokens[index]),
            )
        request.request.resume.attempt = 1
        stream = await ctx.generate(request)
        for index, cut in enumerate(ends):
            message = f"choice {index} of a {what} request cut after {cut} tokens goes on in another way"
            expect_equal(stream.choices.get(index, Choice(index)).tokens, tokens[index][cut:], message)


@check(
    "SEQ-05", variant="failed", gate="resume", needs=(*SHAPE, *SEVERAL, "SEQ-05", "ERR-21/later"), alone=True
)
async def a_choice_that_fails_ends_all(ctx: Context) -> None:
    """The lists leave nothing behind the token that one of two brings along; the other one could go on."""
    can, (one, other) = ctx.capabilities, ctx.prompt(2)
    if ctx.config.max_num_seqs == 1 or not (can.allowed_token_ids and can.bad_words):
        raise NotApplicable("no choice can fail here while another one runs")
    words = [pb.TokenSequence(token_ids=pair) for pair in ([one, one], [one, other], [other, one])]
    lists: dict[str, Value] = {"allowed_token_ids": [one, other], "bad_words_token_ids": words}
    brought = enumerate((one, other))
    choices = [pb.ResumedChoice(index=index, generated_token_ids=[token]) for index, token in brought]
    resume = pb.Resume(choices=choices, attempt=1)
    stream = await ctx.start(ctx.long_request(n=len(choices), resume=resume, **lists)).end()
    message = "a request of which a choice has no token left has another end"
    code, seen = grpc.StatusCode.INVALID_ARGUMENT, stream.exchange.status
    expect(stream.exchange.code is code, message, expected=code.name, seen=seen)
    await ctx.idle()
