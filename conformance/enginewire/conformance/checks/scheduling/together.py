"""INF-09/together: what is advertised, used together.

Each request has several conditions at once, for what works alone may break beside something else. The check
asks only that they are served; what their answers have to be, the monitor says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import WHOLE, check
from enginewire.conformance.session.company import FULL
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.multiplexed import Multiplexed
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import expect

TOKENS: Final = 12
LEAST: Final = 4
STOPS: Final = 20
TOP: Final = 2
Changes = dict[str, Value]


@check("INF-09", variant="together", needs=(*WHOLE, "INF-09", "SAM-01", "MSG-03"), alone=True)
async def what_is_advertised_works_together(ctx: Context) -> None:
    """Plain, then with rows, in runs, as several choices; all at once, and over one stream."""
    greedy = await ctx.greedy(least=LEAST)
    wanted = [
        {"token_ids": greedy.prompt, **ending, **_offered(ctx, beside)}
        for beside in ({}, *_beside())
        for ending in _endings(ctx, greedy)
    ]
    # Some wait for all the others.
    streams = [ctx.start(ctx.request(**changes), timeout=ctx.bounds.check) for changes in wanted]
    for stream, changes in zip(await asyncio.gather(*map(Stream.end, streams)), wanted, strict=True):
        # More than there is room for may be refused.
        is_served = stream.exchange.is_ok or stream.exchange.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        expect(is_served, _failed(changes), expected="OK", seen=stream.exchange.status)
    if ctx.capabilities.multiplexed:
        await _over_one_stream(ctx, wanted)


async def _over_one_stream(ctx: Context, wanted: list[Changes]) -> None:
    stream = Multiplexed(ctx.client, ctx.bounds.check)
    try:
        for number, changes in enumerate(wanted):
            stream.submit(number, ctx.request(**changes))
        await stream.until_ended(*range(len(wanted)))
        for number, changes in enumerate(wanted):
            status = stream.handle(number).status
            is_served = status is None or status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            expect(is_served, _failed(changes), expected="OK", seen=status)
    finally:
        await stream.close()


def _endings(ctx: Context, greedy: Greedy) -> Iterator[Changes]:
    """What may end a choice, where the greedy run says that it will."""
    at = greedy.first_new(2)
    token, beyond = greedy.tokens[at], ctx.tokens(TOKENS + at)
    others = [other for other in range(ctx.config.vocab_size) if other not in greedy.tokens][:STOPS]
    yield {"max_tokens": ctx.tokens(TOKENS)}
    yield {"max_tokens": at, "min_tokens": at}
    yield {"max_tokens": at + 1, "stop_token_ids": [*others, token]}
    yield {"max_tokens": beyond, "stop_token_ids": [*others, token], "stop_token_ids_visible": others}
    yield {"max_tokens": at + 1, "eos_token_ids": [token], "ignore_eos": False}
    yield {
        "max_tokens": beyond,
        "stop_token_ids_hidden": [token],
        "min_tokens": min(at + 2, beyond),
        "ignore_eos": None,
    }


def _beside() -> Iterator[Changes]:
    """What may go with any of them."""
    yield {"logprobs": TOP, "stream_interval": 3}
    yield {"n": 2, "logprobs": TOP}
    yield {"n": 2, "stream_interval": 4, "seed": 7, "priority": 1}
    yield {"resume": pb.Resume(choices=[pb.ResumedChoice()], attempt=1), "logprobs": 0, "stream_interval": 2}


def _offered(ctx: Context, changes: Changes) -> Changes:
    """Those of which the capability is advertised, and that the limits allow."""
    most = ctx.limits.max_logprobs if ctx.limits.HasField("max_logprobs") else TOP
    usable = {
        "stream_interval": True,
        "n": ctx.choices(2) > 1,
        "logprobs": ctx.capabilities.logprobs and most >= TOP,
        "seed": ctx.capabilities.seed,
        # Where others always wait as well, whoever comes after them never has a turn.
        "priority": ctx.capabilities.priority and FULL not in ctx.company.members,
        "resume": ctx.capabilities.resume,
    }
    return {name: value for name, value in changes.items() if usable[name]}


def _failed(changes: Changes) -> str:
    return f"a request with {', '.join(sorted(changes))} fails"
