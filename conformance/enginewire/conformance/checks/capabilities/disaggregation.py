"""DIS: prompts in one engine, answers in another."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import check
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.context import Context, require_refusal
from enginewire.conformance.session.features import FEATURES
from enginewire.conformance.session.halves import both, decoding, handoff, prefilled
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.sizes import most_choices
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

PRECONDITION: Final = (grpc.StatusCode.FAILED_PRECONDITION,)
TOKENS: Final = 6
LONG: Final = 512
"""Prompt tokens of a request that is aborted before its end."""
TRIES: Final = 5
SEVERAL: Final = 3
CHOICES: Final = 3
COMPARED: Final = 2
"""Tokens of two greedy runs. Later ones may differ where a model is undecided."""
MOST_SECONDS: Final = 10.0
"""Hand-offs that live longer are not waited for."""
DETAILS: Final = pb.PromptTokensDetails(cached_tokens=3)


@check("DIS-01")
async def other_roles_are_refused(ctx: Context) -> None:
    """A hand-off where none belongs, whatever it holds, an empty one, and one beside tokens that were
    delivered; or none where one does.
    """
    if ctx.config.role == pb.ENGINE_ROLE_DECODE:
        _is_mismatch(await ctx.refused(ctx.request()))
        return
    for result in (*map(_result, _handoffs()), pb.PrefillResult()):
        for others in _without_and_with_resume(ctx):
            _is_mismatch(await ctx.refused(ctx.request(prefill_result=result, **others)))


@check("DIS-01", variant="prefill", gate="disaggregation")
async def a_prefill_engine_refuses_handoffs(ctx: Context) -> None:
    """The other half of a pair, whatever the hand-off holds."""
    for handed in _handoffs():
        request = requests.change(ctx.request(), prefill_result=_result(handed))
        _is_mismatch((await ctx.start(request, client=ctx.prefill()).end()).exchange)


@check("DIS-10")
async def a_rendezvous_needs_a_role(ctx: Context) -> None:
    """On an engine that does both halves itself: one that says where, and one that says nothing."""
    if ctx.config.role in (pb.ENGINE_ROLE_PREFILL, pb.ENGINE_ROLE_DECODE):
        raise NotApplicable("the engine has a role in which it meets others")
    place = pb.BootstrapInfo(bootstrap_host="127.0.0.1", bootstrap_port=1, bootstrap_room=1)
    for bootstrap_info in (place, pb.BootstrapInfo()):
        for others in _without_and_with_resume(ctx):
            _is_mismatch(await ctx.refused(ctx.request(bootstrap_info=bootstrap_info, **others)))


@check("PRB-01", variant="prefill", gate="prefill")
async def a_prefill_engine_serves_probes(ctx: Context) -> None:
    """Only token ids."""
    stream = await ctx.start(_probe(ctx), client=ctx.prefill(), timeout=ctx.bounds.answer).ok()
    await _free(ctx, stream)


@check("PRB-01", variant="decode", gate="decode")
async def a_decode_engine_serves_probes(ctx: Context) -> None:
    """Only token ids."""
    await ctx.start(_probe(ctx), timeout=ctx.bounds.answer).first_token()


@check("DIS-02")
async def prefill_answers_once(ctx: Context) -> None:
    """One terminal output, a token at most, and something to hand over: of several choices as well."""
    several = min(most_choices((await ctx.prefill().info()).config), CHOICES)
    for count in sorted({1, several}):
        stream = await prefilled(ctx, ctx.request(max_tokens=TOKENS, n=count))
        expect_equal(len(stream.outputs), 1, "a prefill answer is not one output")
        expect(len(stream.tokens) <= 1, "a prefill answer has more than one token", seen=len(stream.tokens))
        expect_equal(stream.choice.reason_name, "LENGTH", "a prefill answer ends with another reason")
        expect(handoff(stream).params, "the hand-off's params are empty")
        await _free(ctx, stream)


@check("DIS-03", needs=("DIS-02",))
async def handoffs_work(ctx: Context) -> None:
    """Carried over byte for byte, by another connection than it came on."""
    request = ctx.request(max_tokens=TOKENS)
    handed = handoff(await prefilled(ctx, request))
    client = ctx.connect()
    stream = await ctx.start(decoding(ctx, request, handed), client=client, timeout=ctx.bounds.answer).end()
    expect(
        stream.exchange.is_ok, "a fresh hand-off is not accepted", expected="OK", seen=stream.exchange.status
    )
    expect(stream.tokens, "a hand-off was answered without a token")


@check("DIS-03", variant="refused-before", needs=("DIS-03", "DIS-05/other-prompt"), gate="disaggregation")
async def refused_requests_claim_nothing(ctx: Context) -> None:
    """One for nothing, one of another prompt and one whose id is taken, then the one that it was made for."""
    request, lasting = ctx.request(max_tokens=TOKENS), ctx.long_request()
    handed, made = handoff(await prefilled(ctx, request)), time.monotonic()
    others: tuple[dict[str, Value], ...] = ({"max_tokens": 0}, {"token_ids": ctx.prompt(salt=5)})
    for change in others:
        refused = requests.change(request, **change)
        seen = await ctx.start(decoding(ctx, refused, handed), timeout=ctx.bounds.answer).end()
        expect(not seen.exchange.is_ok, f"a request with {next(iter(change))} changed is served", seen="OK")
    await _is_still_good(ctx, request, handed, made)
    lasting = decoding(ctx, lasting, handoff(await prefilled(ctx, lasting)))
    running = await ctx.start(lasting, timeout=ctx.bounds.check).first_token()
    handed, made = handoff(await prefilled(ctx, request)), time.monotonic()
    twin = requests.change(decoding(ctx, request, handed), request_id=lasting.request_id)
    seen = await ctx.start(twin, timeout=ctx.bounds.answer).end()
    running.cancel()
    # One that is served had an id that was free again.
    if not seen.exchange.is_ok:
        await _is_still_good(ctx, request, handed, made)


async def _is_still_good(
    ctx: Context, request: pb.GenerateRequest, handed: pb.PrefillHandoff, made: float
) -> None:
    stream = await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.answer).end()
    if time.monotonic() > made + _ttl(handed):
        raise NotApplicable("a hand-off is old here before requests with it were refused")
    message = "a hand-off is not accepted after requests with it were refused"
    expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)


@check("DIS-04", needs=("DIS-03",))
async def no_token_is_lost_or_repeated(ctx: Context) -> None:
    """Beside a probe of the same prompt: the decode engine serves those alone, as an aggregated one."""
    request = ctx.request(token_ids=ctx.prompt(12), max_tokens=TOKENS)
    stream = await both(ctx, request)
    expect_equal(len(stream.tokens), TOKENS, "another number of tokens than max_tokens")
    expect_equal(stream.choice.outputs[0].first_output_position, 0, "the answer does not begin at position 0")
    probe = requests.change(request, request_id=ctx.request().request_id, is_probe=True)
    alone = (await ctx.start(probe, timeout=ctx.bounds.answer).ok()).tokens[:COMPARED]
    expect_equal(stream.tokens[: len(alone)], alone, "the greedy answer is not that of one engine")


@check("DIS-05")
async def forged_handoffs_are_refused(ctx: Context) -> None:
    """Made up, and from an engine that is not there any more."""
    for handed in (_forged(), pb.PrefillHandoff(params=b"\xff" * 64)):
        await _is_invalid(ctx, ctx.request(), handed)


@check("DIS-05", variant="other-prompt", needs=("DIS-03",), gate="disaggregation")
async def handoffs_fit_their_prompt(ctx: Context) -> None:
    """The hand-off of one prompt with another one."""
    stream = await prefilled(ctx, ctx.request(max_tokens=TOKENS))
    other = ctx.request(token_ids=ctx.prompt(salt=5), max_tokens=TOKENS)
    await _is_invalid(ctx, other, handoff(stream))
    await _free(ctx, stream)


@check("DIS-05", variant="expired", needs=("DIS-03",), gate="disaggregation", alone=True)
async def expired_handoffs_are_refused(ctx: Context) -> None:
    """Once the prefill engine counts it no more."""
    request = ctx.request(max_tokens=TOKENS)
    handed = handoff(await prefilled(ctx, request))
    await _pending(ctx, _patience(handed) + ctx.bounds.reaction)
    await _is_invalid(ctx, request, handed)


@check("DIS-06", needs=("DIS-02",))
async def failed_prefills_hand_nothing_over(ctx: Context) -> None:
    """Aborted before its end, and refused."""
    for attempt in range(TRIES):
        streams = await _aborted(ctx, 2**attempt)
        found = [
            output for stream in streams for output in stream.outputs if output.HasField("prefill_handoff")
        ]
        expect(not found, "an aborted prefill hands over", seen=len(found))
        if streams:
            return
    raise NotApplicable("prompts are computed here before they can be aborted")


@check("DIS-07", needs=("DIS-03",), alone=True)
async def claimed_handoffs_are_freed(ctx: Context) -> None:
    """On both sides, once the answer has ended."""
    base, request = await _pending(ctx, ctx.bounds.reaction), ctx.request(max_tokens=TOKENS)
    handed = handoff(await prefilled(ctx, request))
    held = (await ctx.prefill().load()).pending_transfers
    expect_equal(held, base + 1, "Load.pending_transfers does not count a hand-off that nobody has claimed")
    await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.answer).ok()
    await _is_freed(ctx, base, ctx.bounds.reaction)
    await ctx.idle()


@check("DIS-07", variant="cancelled", needs=("DIS-03", "DIS-07"), alone=True)
async def cancelled_handoffs_are_freed(ctx: Context) -> None:
    """The decode request is cancelled after its first token; another one is never made but aborted."""
    base, request = await _pending(ctx, ctx.bounds.reaction), ctx.long_request()
    handed = handoff(await prefilled(ctx, request))
    stream = await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.check).first_token()
    stream.cancel()
    await _is_freed(ctx, base, ctx.bounds.reaction)
    await ctx.idle()
    await _free(ctx, await prefilled(ctx, ctx.request(max_tokens=TOKENS)))
    # Waiting until it is old would prove nothing.
    await _is_freed(ctx, base, min(ctx.bounds.reaction, _ttl(handed) / 2))


@check("DIS-07", variant="expired", needs=("DIS-03", "DIS-07"), alone=True)
async def old_handoffs_are_freed(ctx: Context) -> None:
    """Nobody comes for them."""
    base = await _pending(ctx, ctx.bounds.reaction)
    for _ in range(SEVERAL):
        handed = handoff(await prefilled(ctx, ctx.request(max_tokens=TOKENS)))
    await _is_freed(ctx, base, _patience(handed) + ctx.bounds.reaction)


@check("DIS-08", needs=("DIS-03",), counts_prompt=True)
async def prompts_are_counted_once(ctx: Context) -> None:
    """By the decode engine, with the details it was given."""
    request = ctx.request(max_tokens=TOKENS)
    handed = handoff(await prefilled(ctx, request))
    told = decoding(ctx, request, handed)
    told.request.prefill_result.prompt_tokens_details.CopyFrom(DETAILS)
    usage = (await ctx.start(told, timeout=ctx.bounds.answer).ok()).usage
    expect_equal(usage.prompt_tokens, len(request.request.token_ids), "the prompt is not counted once")
    expect_equal(usage.completion_tokens, TOKENS, "completion_tokens is not the number of tokens sent")
    seen = usage.prompt_tokens_details.cached_tokens
    expect_equal(seen, DETAILS.cached_tokens, "the usage has not the details of the prefill")


@check("DIS-09", needs=("DIS-03",))
async def handoffs_are_good_once(ctx: Context) -> None:
    """Two answers with one hand-off."""
    request = ctx.request(max_tokens=TOKENS)
    handed = handoff(await prefilled(ctx, request))
    await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.answer).ok()
    again = await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.answer).end()
    expect(not again.exchange.is_ok, "a hand-off was good for two uses", expected="refused", seen="OK")
    require_refusal(again.exchange, PRECONDITION, reason=pb.ERROR_REASON_HANDOFF_INVALID)


def _probe(ctx: Context) -> pb.GenerateRequest:
    asked = pb.PreprocessedRequest(token_ids=ctx.prompt(), is_probe=True)
    return pb.GenerateRequest(request_id=ctx.request().request_id, request=asked)


def _forged() -> pb.PrefillHandoff:
    return pb.PrefillHandoff(params=b"made up by nobody", host="127.0.0.1", port=9, room=2**63 + 1)


def _handoffs() -> list[pb.PrefillHandoff]:
    """One that might have been made by an engine, and those that none has made."""
    no_numbers = [pb.PrefillHandoff(params=b"x", ttl_seconds=number) for number in (math.nan, math.inf, -1.0)]
    return [_forged(), *no_numbers, pb.PrefillHandoff()]


def _result(handed: pb.PrefillHandoff) -> pb.PrefillResult:
    return pb.PrefillResult(handoff=handed)


async def _is_invalid(ctx: Context, request: pb.GenerateRequest, handed: pb.PrefillHandoff) -> None:
    exchange = (await ctx.start(decoding(ctx, request, handed), timeout=ctx.bounds.answer).end()).exchange
    require_refusal(exchange, PRECONDITION, reason=pb.ERROR_REASON_HANDOFF_INVALID)


def _without_and_with_resume(ctx: Context) -> list[dict[str, Value]]:
    """What a request may have beside what it is judged by."""
    return [{}, FEATURES["resume"]] if ctx.capabilities.resume else [{}]


def _is_mismatch(exchange: Exchange) -> None:
    require_refusal(exchange, PRECONDITION, reason=pb.ERROR_REASON_ROLE_MISMATCH)


def _patience(handed: pb.PrefillHandoff) -> float:
    """Seconds until a hand-off is old."""
    if _ttl(handed) > MOST_SECONDS:
        raise NotApplicable(f"hand-offs live longer than {MOST_SECONDS:.0f} s here, or do not say how long")
    return _ttl(handed)


def _ttl(handed: pb.PrefillHandoff) -> float:
    return handed.ttl_seconds if handed.HasField("ttl_seconds") else math.inf


async def _pending(ctx: Context, seconds: float, base: int = 0) -> int:
    """What the prefill engine holds for others, once it is down to `base` or that time is over."""
    client, looks = ctx.prefill(), Looks(seconds)
    while (pending := (await client.load()).pending_transfers) > base and not looks.are_over():
        await pause()
    return pending


async def _is_freed(ctx: Context, base: int, seconds: float) -> None:
    pending = await _pending(ctx, seconds, base)
    expect(pending <= base, "KV that was handed over is not freed", expected=f"{base} pending", seen=pending)


async def _free(ctx: Context, stream: Stream) -> None:
    """Abort a prefill after its end, as a backend does whose caller left."""
    await ctx.prefill().abort([stream.request.request_id])


async def _aborted(ctx: Context, count: int) -> list[Stream]:
    """Of so many prefills at once those that were aborted under way: many take longer than few."""
    client, length = ctx.prefill(), min(LONG, ctx.longest_prompt() // 2)
    # Prompts that nobody has cached.
    prompts = [ctx.prompt(length, salt=ctx.fresh_salt()) for _ in range(count)]
    requests = [ctx.request(token_ids=prompt) for prompt in prompts]
    streams = [ctx.start(request, client=client, timeout=2 * ctx.bounds.answer) for request in requests]
    await asyncio.gather(*(stream.call.accepted() for stream in streams))
    results = await client.abort([request.request_id for request in requests])
    aborted = {result.request_id for result in results if result.outcome == pb.ABORT_OUTCOME_ABORTED}
    await asyncio.gather(*(stream.end() for stream in streams))
    return [stream for stream in streams if stream.request.request_id in aborted]
