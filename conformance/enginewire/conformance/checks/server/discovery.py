"""INF: what the engine says about itself, and that it is true."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, repeat
from typing import Final, cast

from enginewire import v1 as pb
from enginewire.conformance.checks.server.health import OTHERS
from enginewire.conformance.running.registry import SHAPE, Phase, check
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.company import FULL
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.features import FEATURES, SERVED_ALONE
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.saturation import MOST_SLOTS, saturated
from enginewire.conformance.session.sizes import ranks_of, slots_of
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.tasks import stop
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

MAY_BE_ZERO: Final = frozenset(
    {"data_parallel_start_rank", "max_logprobs", "max_prompt_logprobs", "max_num_queued_reqs"}
)
"""Optional fields whose 0 has a meaning of its own."""

READY: Final = frozenset({pb.ENGINE_STATE_READY})
ALIVE: Final = READY | {pb.ENGINE_STATE_STARTING, pb.ENGINE_STATE_DRAINING}
"""States in which health is SERVING, for services and for the process."""

LIMITED: Final = (
    ("multiple_choices", "max_n", 128),
    ("logprobs", "max_logprobs", 20),
    ("prompt_logprobs", "max_prompt_logprobs", 20),
    ("selected_logprobs", "max_stop_token_ids", 256),
    ("stop_token_ids", "max_stop_token_ids", 256),
    ("logit_bias", "max_logit_bias", 1024),
    ("allowed_token_ids", "max_allowed_token_ids", 65536),
    ("bad_words", "max_bad_words", 1024),
)
"""What is limited, the limit, and the contract's own where Limits is silent."""

MOST_WAITING: Final = 32
"""Requests beside those that run. A thousand streams would keep the kit itself from looking at the load."""
LOOKS: Final = 20
SEVERAL: Final = 3
"""Choices of one request, where there may be so many."""


@check("INF-01", alone=True)
async def answers_first_and_often(ctx: Context) -> None:
    """The first call of a fresh connection, then again."""
    client = ctx.connect()
    for _ in range(2):
        exchange = await client.ask("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest())
        info = cast(pb.GetEngineInfoResponse, exchange.response())
        expect(info.HasField("config"), "GetEngineInfo has no config", seen="an empty answer")
        expect(info.config.vocab_size or info.config.model, "the config is empty")


@check("INF-02")
async def has_a_model(ctx: Context) -> None:
    """The model's name."""
    expect(ctx.config.model, "EngineConfig.model is empty")


@check("INF-03", alone=True)
async def stays_the_same(ctx: Context) -> None:
    """Now, and after a request."""
    await _same_info(ctx)
    await ctx.start(ctx.request()).end()
    await _same_info(ctx)


@check("INF-03", variant="after-load", phase=Phase.LOAD, alone=True)
async def stays_the_same_under_load(ctx: Context) -> None:
    """At the end of a run."""
    await _same_info(ctx)


@check("INF-04", needs=(*SHAPE, "LIM-01"))
async def serves_a_full_window(ctx: Context) -> None:
    """A prompt that leaves room for exactly what it asks for."""
    prompt, room = ctx.filling_prompt(4)
    stream = await ctx.generate(ctx.request(token_ids=prompt, max_tokens=room))
    expect_equal(len(stream.tokens), room, "a prompt that fits its window is not served in full")


@check("INF-05", needs=SHAPE)
async def ids_are_below_the_vocabulary(ctx: Context) -> None:
    """Greedy and hot outputs of several prompts."""
    expect(ctx.config.vocab_size, "EngineConfig.vocab_size is not set")
    changes: dict[str, Value] = {"max_tokens": ctx.tokens(32), "temperature": 2.0}
    hot = [ctx.request(token_ids=ctx.prompt(salt=salt), **changes) for salt in range(4)]
    streams = await asyncio.gather(*(ctx.generate(request) for request in [*hot, ctx.request()]))
    for stream in streams:
        wrong = [token for token in stream.tokens if token >= ctx.config.vocab_size]
        expect(not wrong, "a token id is not below vocab_size", expected=ctx.config.vocab_size, seen=wrong)


@check("INF-06")
async def absent_is_not_zero(ctx: Context) -> None:
    """Every optional field of the config and its limits."""
    for message in (ctx.config, ctx.limits):
        for field, value in message.ListFields():
            if field.has_presence and not field.message_type and field.name not in MAY_BE_ZERO:
                expect(
                    value, f"{message.DESCRIPTOR.name}.{field.name} is present and zero", expected="absent"
                )


@check("INF-07", alone=True)
async def blocks_agree(ctx: Context) -> None:
    """The config's blocks are the load's."""
    expect(ctx.config.HasField("total_kv_blocks"), "kv_cache_block_size without total_kv_blocks")
    total = ctx.config.total_kv_blocks * len(ranks_of(ctx.config))
    load = await ctx.client.load()
    expect_equal(load.kv_blocks_total, total, "Load.kv_blocks_total is not what the config says")


@check("INF-07", variant="under-load", phase=Phase.LOAD, alone=True, needs=SHAPE)
async def blocks_are_bounded(ctx: Context) -> None:
    """While every slot is taken."""
    async with saturated(ctx):
        for _ in range(LOOKS):
            load = await ctx.client.load()
            expect(load.kv_blocks_used <= load.kv_blocks_total, "more KV blocks are used than there are")


@check("INF-08", phase=Phase.LOAD, alone=True, needs=SHAPE)
async def running_is_bounded(ctx: Context) -> None:
    """More requests than slots: four times as many where the slots are few."""
    await _stays_bounded(ctx, repeat(1))


@check(
    "INF-08",
    variant="choices",
    phase=Phase.LOAD,
    gate="multiple_choices",
    alone=True,
    needs=(*SHAPE, "INF-08", "SEQ-05/cancelled"),
)
async def running_choices_are_bounded(ctx: Context) -> None:
    """Each of them is a sequence, also where some slots are left, and fewer than a request needs."""
    if ctx.config.max_num_seqs == 1 or ctx.choices(2) < 2:
        raise NotApplicable("there is no room for two choices")
    several = min(ctx.choices(SEVERAL), ctx.config.max_num_seqs or SEVERAL)
    first = several if ctx.config.max_num_seqs % several else 1
    await _stays_bounded(ctx, chain([first], repeat(several)))


@check(
    "INF-08",
    variant="counted",
    phase=Phase.LOAD,
    gate="multiple_choices",
    alone=True,
    needs=(*SHAPE, "SEQ-01"),
)
async def running_choices_are_counted(ctx: Context) -> None:
    """Two of one request, each of which has a token."""
    if ctx.config.max_num_seqs == 1 or ctx.choices(2) < 2:
        raise NotApplicable("there is no room for two choices")
    await ctx.idle()
    stream = ctx.start(ctx.long_request(n=2))
    while len(stream.choices) < 2:
        expect(await anext(stream.call, None) is not None, "the stream ended before each choice began")
    running = (await ctx.client.load()).running
    await ctx.client.abort([stream.request.request_id])
    await stream.end()
    if any(choice.reason_name != "CANCELLED" for choice in stream.choices.values()):
        raise NotApplicable("the longest request ends before its load can be seen")
    expect_equal(running, 2, "Load.running does not count the sequences being computed")


async def _stays_bounded(ctx: Context, choices: Iterator[int]) -> None:
    """Beside more requests than there are slots, which ask for so many choices in turn."""
    if not ctx.config.HasField("max_num_seqs"):
        raise NotApplicable("EngineConfig.max_num_seqs is absent")
    slots, of_each = slots_of(ctx.config), ctx.config.max_num_seqs
    if slots > MOST_SLOTS:
        raise NotApplicable(f"{slots} slots are more than the kit fills")
    # How soon a busy server answers is for others to judge.
    ctx.client.timeout = ctx.bounds.check / 2
    count = slots + min(3 * slots, MOST_WAITING)
    streams = [ctx.start(ctx.long_request(n=n)) for n in islice(choices, count)]
    # On a busy machine those that were sent first need not arrive first.
    reading = [asyncio.ensure_future(stream.first_token()) for stream in streams]
    try:
        await _one_of(reading)
        for _ in range(LOOKS):
            load = await ctx.client.load()
            for running in [rank.running for rank in load.ranks] or [load.running]:
                message = "more sequences run than max_num_seqs"
                expect(running <= of_each, message, expected=of_each, seen=running)
            await pause()
    finally:
        await stop(reading)


async def _one_of(awaited: Sequence[asyncio.Future[Stream]]) -> None:
    """Wait for one that does not fail; where all do, as the first of them does."""
    for each in asyncio.as_completed(awaited):
        with suppress(Violation):
            await each
            return
    await awaited[0]


# A beam search draws nothing, and may be of one answer.
@check("INF-09", needs=SHAPE, not_beside=("temperature", "top_p", "min_p", "seed", "resume", "n", FULL))
async def what_is_advertised_works(ctx: Context) -> None:
    """The simplest request of each capability."""
    for name in sorted(SERVED_ALONE):
        # With one choice at most, several are advertised in name only; SEQ-06 looks at the limit.
        is_one = name == "multiple_choices" and ctx.choices(2) < 2
        if getattr(ctx.capabilities, name) and not is_one:
            stream: Stream = await ctx.start(ctx.request(**FEATURES[name])).end()
            message = f"Capabilities.{name} is advertised, but a request that uses it fails"
            expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)


@check("INF-09", variant="limits", needs=(*SHAPE, "INF-09"))
async def limits_can_be_reached(ctx: Context) -> None:
    """As much of each capability as the limits allow, or as the contract does where they are silent."""
    for capability, limit, usual in LIMITED:
        named = ctx.limits.HasField(limit)  # type: ignore[arg-type]  # a name of the table
        most = getattr(ctx.limits, limit) if named else usual
        if getattr(ctx.capabilities, capability, True) and most:
            change = _as_much(capability, most, ctx.config.vocab_size)
            stream = await ctx.start(ctx.request(max_tokens=1, **change)).end()
            message = f"{most} of {capability} are within Limits.{limit}, but refused"
            expect(stream.exchange.is_ok, message, expected="OK", seen=stream.exchange.status)


@check("INF-10")
async def says_who_it_is(ctx: Context) -> None:
    """Names and version."""
    for name in ("engine_name", "engine_version", "instance_id"):
        expect(getattr(ctx.info, name), f"GetEngineInfoResponse.{name} is empty")


@check("INF-10", variant="two-servers", phase=Phase.LAUNCH, gate="launch", needs=("INF-10",))
async def servers_differ(ctx: Context) -> None:
    """Two programs alive at the same time."""
    programs = [await ctx.spawn(), await ctx.spawn()]
    seen = set()
    for program in programs:
        await program.ready(ctx.bounds.check)
        info = await ctx.connect(ctx.session.connection.at(program.target)).info()
        seen.add(info.instance_id)
    expect_equal(len(seen), len(programs), "two servers alive at the same time have one instance_id")


@check("INF-11")
async def bootstrap_is_routable(ctx: Context) -> None:
    """No wildcard, and a port."""
    host, port = ctx.config.bootstrap_host, ctx.config.bootstrap_port
    expect(not _is_wildcard(host), "bootstrap_host is a wildcard", seen=host)
    expect(1 <= port <= 65535, "bootstrap_port is no port", expected="1 to 65535", seen=port)


@check("INF-12", alone=True, needs=("HLT-03",))
async def health_agrees_with_the_load(ctx: Context) -> None:
    """As the server is."""
    await _agrees(ctx)


@check("INF-12", variant="ending", phase=Phase.DESTRUCTIVE, alone=True, needs=("INF-12", "HLT-04"))
async def health_agrees_to_the_end(ctx: Context) -> None:
    """Drained, then cleaned up where that is served: the process is worth keeping until then.

    A request has been served before, as its load tells to the end.
    """
    await ctx.start(ctx.request()).end()
    steps = [("Drain", pb.DrainRequest()), ("Cleanup", pb.CleanupRequest())]
    for method, request in steps if ctx.capabilities.cleanup else steps[:1]:
        await ctx.client.ask(f"EngineService.{method}", request, timeout=ctx.bounds.answer)
        await _agrees(ctx)
        # What is answered here is for INF-01, which holds in every state.
        await ctx.client.ask("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest())


async def _same_info(ctx: Context) -> None:
    info = await ctx.client.info()
    for field in info.DESCRIPTOR.fields:
        before, now = getattr(ctx.info, field.name), getattr(info, field.name)
        expect(before == now, f"GetEngineInfoResponse.{field.name} changed", expected=before, seen=now)


def _as_much(capability: str, most: int, vocab_size: int) -> dict[str, Value]:
    ids = range(min(most, vocab_size))
    if capability == "multiple_choices":
        return {"n": most}
    if capability == "logit_bias":
        return {"logit_bias": [pb.LogitBias(token_id=token, bias=1.0) for token in ids]}
    if capability == "bad_words":
        words = [pb.TokenSequence(token_ids=[token, token]) for token in ids]
        return {"bad_words_token_ids": words}
    if capability == "selected_logprobs":
        return {"logprob_token_ids": ids}
    return {capability: ids if capability.endswith("_ids") else min(most, vocab_size)}


async def _agrees(ctx: Context) -> None:
    """Of the process, and of each service that is served."""
    for service in (health_types.LIVENESS, health_types.READINESS, *OTHERS):
        asked = await ctx.client.ask(health_types.CHECK, health_types.request(service))
        if service in OTHERS and not asked.is_ok:
            continue  # HLT-08 says what else there may be
        health, state = health_types.status_of(asked.response()), (await ctx.client.load()).state
        serves = ALIVE if service == health_types.LIVENESS else READY
        expected = health_types.SERVING if state in serves else health_types.NOT_SERVING
        message = f"health of {service!r} and Load.state {pb.EngineState.Name(state)} disagree"
        expect_equal(health_types.NAMES.get(health), health_types.NAMES[expected], message)


def _is_wildcard(host: str) -> bool:
    if host in ("", "*"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False
