"""PRB: requests that ask whether the engine really generates."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session import requests
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.sizes import ranks_of
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import expect, expect_equal

PROMPTS: Final = 4
BLOCKS: Final = 4


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
