"""PRB: requests that ask whether the engine really generates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.multiplexed import SHORT, open_stream
from enginewire.conformance.running.registry import SHAPE, WHOLE, Phase, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.invalid_requests import fails_later
from enginewire.conformance.session.requests import change
from enginewire.conformance.session.saturation import saturated
from enginewire.conformance.session.sizes import ranks_of
from enginewire.conformance.wire.stream import Stream, reason_name
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

PROMPTS: Final = 4
BLOCKS: Final = 4
NORMAL: Final = frozenset({"EOS", "STOP", "LENGTH"})
"""Ends of what was computed."""


@check("PRB-01", needs=("STR-01", "STR-02", "STR-05"))
async def a_prompt_is_enough(ctx: Context) -> None:
    """A request id, token ids, and the word that it is a probe; then past every EOS."""
    for conditions in (None, pb.StopConditions(ignore_eos=True)):
        inner = pb.PreprocessedRequest(token_ids=ctx.prompt(), is_probe=True, stop_conditions=conditions)
        request = pb.GenerateRequest(request_id=ctx.request().request_id, request=inner)
        stream = await ctx.start(request, timeout=2 * ctx.bounds.answer).end()
        message = "a probe with only token_ids is not served"
        expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)
        expect(stream.terminals, "the answer of a probe has no terminal output", seen=stream.exchange.status)
        count = len(stream.tokens)
        expect(count <= 1, "a probe without max_tokens goes on", expected="one token", seen=f"{count} tokens")


@check("PRB-02", needs=(*SHAPE, "LIM-03", "USE-01", "PRB-01"))
async def the_model_answers(ctx: Context) -> None:
    """The first greedy tokens of a few prompts, one or two: what is made up is not the model's."""
    for salt in range(PROMPTS):
        prompt, count = ctx.prompt(salt=salt), 1 + salt % 2
        probe = await ctx.generate(_probe(ctx, token_ids=prompt, max_tokens=count))
        if any(output.HasField("prefill_handoff") for output in probe.terminals):
            continue
        expect(probe.tokens, "the answer of a probe has no token", expected="at least 1", seen=0)
        expect(probe.usage.completion_tokens, "the usage of a probe counts no token")
        plain = await ctx.generate(ctx.request(token_ids=prompt, max_tokens=1))
        expect_equal(probe.tokens[:1], plain.tokens, "a greedy probe does not bring the model's token")
        expect_equal(len(probe.tokens), count, f"a probe with max_tokens {count} has another number of them")


@check("PRB-03", needs=("PRB-01", "ERR-02"))
async def a_failed_probe_says_so(ctx: Context) -> None:
    """One that the model cannot compute."""
    await ctx.generate(_probe(ctx))
    prompt = [*ctx.prompt(), ctx.config.vocab_size]
    stream = await ctx.start(_probe(ctx, token_ids=prompt)).end()
    reasons = [terminal.finish_reason for terminal in stream.terminals]
    failed = not stream.exchange.is_ok or reasons == [pb.FINISH_REASON_ERROR]
    message = "a probe that cannot be computed ends like one that can"
    expect(failed, message, expected="a status or FINISH_REASON_ERROR", seen=stream.choice.reason_name)


@check(
    "PRB-03",
    variant="running",
    phase=Phase.LOAD,
    alone=True,
    needs=(*WHOLE, "PRB-01", "PRB-02", "PRB-03", "ABO-01", "ERR-21/later"),
)
async def a_probe_that_is_cut_says_so(ctx: Context) -> None:
    """After its first token: by an abort, and by lists that leave nothing; on a stream by its timeout."""
    aborted = await ctx.start(ctx.long_request(is_probe=True)).first_token()
    await ctx.client.abort([aborted.request.request_id])
    _is_no_normal_end(aborted.request, (await aborted.end()).terminals, "that was aborted")
    with suppress(NotApplicable):
        failed = await ctx.start(change(fails_later(ctx), is_probe=True)).end()
        _is_no_normal_end(failed.request, failed.terminals, "with no token left")
    if ctx.capabilities.multiplexed:
        await _cut_on_a_stream(ctx)


@check(
    "PRB-03",
    variant="queued",
    gate="multiplexed",
    phase=Phase.LOAD,
    alone=True,
    needs=(*WHOLE, "INF-08", "PRB-01", "PRB-03", "PRB-03/running"),
)
async def a_probe_that_is_cut_in_the_queue_says_so(ctx: Context) -> None:
    """The same of probes that wait for a slot."""
    async with saturated(ctx) as running:
        if (await ctx.client.load()).running < len(running):
            raise NotApplicable("the slots are free again before a probe can wait")
        if not await _cut_on_a_stream(ctx):
            raise NotApplicable("no probe that has to wait is accepted here, or none of them ends in time")


async def _cut_on_a_stream(ctx: Context) -> int:
    """By its timeout, AbortHandles and Abort: how many ended. Which end is due, and when, others say."""
    several = {"n": ctx.choices(2)} if ctx.choices(2) > 1 else {}
    probes = [ctx.long_request(is_probe=True, **some) for some in ({}, several, {}, {})]
    late, handle, named = (1, 2), 3, 4
    async with open_stream(ctx) as stream:
        submits = [
            stream.submitted(number, probe, SHORT if number in late else None)
            for number, probe in enumerate(probes, 1)
        ]
        stream.send(*submits)
        with suppress(Violation):
            await stream.until(lambda: all(stream.handle(number).is_answered for number in stream.uses))
            stream.send(abort=(handle,))
            await ctx.client.abort([submits[named - 1].generate.request_id])
            await stream.until_ended(*stream.uses, within=SHORT + ctx.bounds.reaction)
    for number, submit in enumerate(submits, 1):
        why = "whose timeout passed" if number in late else "that was aborted"
        _is_no_normal_end(submit.generate, stream.handle(number).terminals, why)
    handles = [stream.handle(number) for number in stream.uses]
    return sum(bool(each.accepted) and each.has_ended for each in handles)


def _is_no_normal_end(request: pb.GenerateRequest, terminals: Sequence[pb.LLMEngineOutput], why: str) -> None:
    """Of each choice that has not all of its tokens."""
    longest = request.request.stop_conditions.max_tokens
    for output in terminals:
        is_whole = output.first_output_position + len(output.token_ids) >= longest
        reason = reason_name(output.finish_reason)
        message = f"a probe {why} ends like one that can be computed"
        expect(is_whole or reason not in NORMAL, message, expected="a status or another reason", seen=reason)


@check("PRB-04", alone=True, needs=("PRB-01", "PRB-02"), counts_prompt=True)
async def nothing_is_left(ctx: Context) -> None:
    """No block of a prompt that was never seen before, neither held nor cached, nor of a longer answer."""
    before = await ctx.idle()
    prompt = ctx.fresh_prompt(BLOCKS)
    for max_tokens in (1, 2):
        await ctx.generate(_probe(ctx, token_ids=prompt, max_tokens=max_tokens))
    cached = (await ctx.idle()).kv_blocks_cached
    expected = f"at most {before.kv_blocks_cached}"
    expect(cached <= before.kv_blocks_cached, "a probe left cached blocks", expected=expected, seen=cached)
    if ctx.capabilities.prefix_cache:
        plain = await ctx.generate(ctx.request(token_ids=prompt))
        found = plain.usage.prompt_tokens_details.cached_tokens
        expect_equal(found, 0, "a request found the blocks of a probe in the cache")


@check("PRB-05", needs=("PRB-01", "MDT-06"), alone=True)
async def every_rank_can_be_probed(ctx: Context) -> None:
    """One probe for each; where the load tells ranks apart, it runs on that rank."""
    for rank in ranks_of(ctx.config):
        await ctx.idle()
        stream = await _started(ctx.start(ctx.long_request(is_probe=True, dp_rank=rank)), rank)
        ranks = (await ctx.client.load()).ranks
        busy = [load.dp_rank for load in ranks if load.running]
        ended = any(output.finish_reason for output in stream.outputs)
        if ranks and not ended:
            expect_equal(busy, [rank], f"a probe of rank {rank} runs elsewhere")
        stream.cancel()


def _probe(ctx: Context, **changes: requests.Value) -> pb.GenerateRequest:
    return ctx.request(**{"is_probe": True, "max_tokens": 1, **changes})


async def _started(stream: Stream, rank: int) -> Stream:
    first = await anext(stream.call, None)
    expect(first is not None, f"rank {rank} cannot be probed", seen=stream.exchange.status)
    return stream
