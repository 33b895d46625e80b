"""CON-08 to CON-10: who of those that wait starts first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.options.opaque import filled
from enginewire.conformance.checks.scheduling.queueing import FULL
from enginewire.conformance.checks.streams.metadata import PRIORITY
from enginewire.conformance.running.registry import WHOLE, Phase, check
from enginewire.conformance.session import company
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value, change
from enginewire.conformance.session.saturation import KINDS, queued, saturated, waits
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.stream import Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, expect

ATTEMPTS: Final = 3
JUMP: Final = 60.0
"""Seconds."""
MISREAD: Final = 2 / 1000
"""Of its jump: so much later comes whoever jumps, too late for a jump that is read as milliseconds."""
PRIORITIES: Final = ((1, -1), (0, -1), (1, 0))
"""Of the one that comes first, and of the one that starts first."""
JUMPERS: Final = (1, 0, 1)
"""Priorities of both in turn: the usual one, and another for which nobody has to give up a slot."""
IN_LINE: Final = 3
"""Requests that wait, where there is room for so many."""
BLOCKS: Final = 3
"""Of their prompts, where that fits the window."""
SHORT: Final = 2
"""Tokens of the last one in the line."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a request says about its place in the queue, in fields and beside them."""

    fields: dict[str, Value] = field(default_factory=dict)
    metadata: Metadata = ()
    is_multiplexed: bool = False

    def start(self, ctx: Context, request: pb.GenerateRequest) -> Stream:
        """Start the request with that and an id of its own."""
        said = change(request, **self.fields, request_id=ctx.request().request_id)
        return ctx.start(said, metadata=self.metadata, is_multiplexed=self.is_multiplexed)


Pair = tuple[Place, Place]
"""Of the one that comes first, and of the one that starts first."""


@check("CON-08", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "MDT-05", "CON-01"), not_beside=("n",))
async def lower_priorities_start_first(ctx: Context) -> None:
    """One of two that wait gets the only slot that is free, and it is not the one that came first.

    Again, where requests that held the other slots have ended meanwhile, as on a busy machine.
    """
    pairs = [(Place({"priority": late}), Place({"priority": early})) for late, early in PRIORITIES]
    await _second_ones_start_first(ctx, pairs, "a request was served before one of a lower priority began")


@check(
    "CON-08",
    variant="metadata",
    phase=Phase.LOAD,
    alone=True,
    needs=(*WHOLE, *FULL, "CON-08", "MDT-05", "MDT-05/multiplexed"),
    not_beside=("n", "priority", company.FULL),
)
async def priorities_of_keys_count(ctx: Context) -> None:
    """The same where metadata says the priorities, that of a call and that of a Submit."""
    pairs = [
        (_by_key(1, is_multiplexed), _by_key(-1, is_multiplexed))
        for is_multiplexed in {False, ctx.capabilities.multiplexed}
    ]
    message = f"a request of {PRIORITY} 1 was served before one of {PRIORITY} -1 began"
    await _second_ones_start_first(ctx, pairs, message)


@check("CON-09", phase=Phase.LOAD, alone=True, needs=(*WHOLE, *FULL, "CON-08"), not_beside=("n",))
async def jumps_go_before(ctx: Context) -> None:
    """The same with a minute's jump of the one that came later, at one priority and another."""
    pairs = [
        (Place({"priority": priority}), Place({"priority": priority, "priority_jump": JUMP}))
        for priority in JUMPERS
    ]
    message = "a request was served before one began that had jumped before it"
    await _second_ones_start_first(ctx, pairs, message)


@check(
    "CON-10",
    phase=Phase.LOAD,
    alone=True,
    needs=(*WHOLE, *FULL, "ABO-01"),
    not_beside=("n", "priority", company.FULL),
)
async def who_came_first_starts_first(ctx: Context) -> None:
    """Those that wait get the only slot that is free one after the other; calls, then handles of a stream."""
    for is_multiplexed in sorted({False, ctx.capabilities.multiplexed}):
        line = await _line(ctx, is_multiplexed)
        async with saturated(ctx) as running:
            waiting = [await queued(ctx, running, each, is_multiplexed=is_multiplexed) for each in line]
            freed, *others = [stream.request.request_id for stream in running]
            starting = [asyncio.ensure_future(stream.first_token()) for stream in waiting]
            for place, first in enumerate(starting[:-1]):
                await ctx.client.abort([freed])
                done, _ = await asyncio.wait(starting[place:], return_when=asyncio.FIRST_COMPLETED)
                has_started = not any(each.exception() for each in done)
                if not (is_right := first.done()):
                    break  # at once: whether all others still ran is what decides
                freed = line[place].request_id
            are_alive = await ctx.client.abort(others) if others else []
            await ctx.client.abort([stream.request.request_id for stream in waiting])
            await asyncio.gather(*starting, return_exceptions=True)
        if any(result.outcome != pb.ABORT_OUTCOME_ABORTED for result in are_alive):
            raise NotApplicable("the slots are free again before a request can be seen to wait")
        if not has_started:
            raise NotApplicable("nobody who waits gets a slot that is free: memory may be short")
        expect(is_right, "a request started before one that had waited longer")


async def _line(ctx: Context, are_first_resumed: bool) -> list[pb.GenerateRequest]:
    """Requests in the order in which they come, with all for which another one might be liked better.

    The later one has the smaller id. The last one has a prompt that is cached, and the shortest answer. The
    one in the middle says nothing to routers and backends, the others say the same. The last one goes on
    with what another engine began, or all but that one do. None needs more memory than one of those that run.
    """
    room = ctx.limits.max_num_queued_reqs if ctx.limits.HasField("max_num_queued_reqs") else IN_LINE
    names = sorted((ctx.request().request_id for _ in range(max(min(room, IN_LINE), 2))), reverse=True)
    length = min(BLOCKS * ctx.block_size + 1, ctx.longest_prompt(SHORT))
    most = max(ctx.long_request().request.stop_conditions.max_tokens - length - 1, 1)
    line = [
        ctx.request(request_id=name, token_ids=ctx.prompt(length, salt=ctx.fresh_salt()), max_tokens=most)
        for name in names
    ]
    line[-1].request.stop_conditions.max_tokens = min(most, SHORT)
    for request in (line[:-1] if are_first_resumed else line[-1:]) if ctx.capabilities.resume else ():
        handed_in = pb.ResumedChoice(generated_token_ids=request.request.token_ids[:1])
        request.request.resume.CopyFrom(pb.Resume(choices=[handed_in], attempt=1))
        request.request.stop_conditions.max_tokens += 1
    cached = ctx.request(token_ids=line[-1].request.token_ids, max_tokens=1)
    await ctx.start(cached).end()
    for request in line[::2]:
        filled(request)
    return line


def _by_key(priority: int, is_multiplexed: bool) -> Place:
    return Place({"priority": None}, ((PRIORITY, str(priority)),), is_multiplexed)


async def _second_ones_start_first(ctx: Context, pairs: Sequence[Pair], message: str) -> None:
    """Each pair with another kind of request, as far as there is time."""
    enough, were_seen = time.monotonic() + ctx.bounds.check / 2, 0
    for pair, kind in zip(pairs, ctx.unlike(ctx.long_request, KINDS), strict=False):
        were_seen += await _starts_first(ctx, pair, change(kind, is_probe=False), message)
        if time.monotonic() > enough:
            break  # the slots are filled up to three times for each
    if not were_seen:
        raise NotApplicable("the slots are free again before a request can be seen to wait")


async def _starts_first(ctx: Context, pair: Pair, second: pb.GenerateRequest, message: str) -> bool:
    for _ in range(ATTEMPTS):
        with suppress(NotApplicable):
            if (has_waited := await _first_one_waits(ctx, pair, second)) is not None:
                expect(has_waited, message)
                return True
    return False


async def _first_one_waits(ctx: Context, pair: Pair, second: pb.GenerateRequest) -> bool | None:
    """The outcomes of aborts say who was alive; None where another slot got free.

    As many slots are freed as the second one has choices.
    """
    count, (waiting, starting) = num_choices(second.request), pair
    async with saturated(ctx) as running:
        late = waiting.start(ctx, ctx.request())
        reading = asyncio.ensure_future(late.end())
        await waits(ctx, len(running), 1)
        if "priority_jump" in starting.fields:
            await asyncio.sleep(MISREAD * JUMP)
        early = starting.start(ctx, second)
        await waits(ctx, len(running), 2)
        names = [stream.request.request_id for stream in (*running, early, late)]
        await ctx.client.abort(names[:count])
        await early.first_token()
        *are_alive, is_late = await ctx.client.abort(names[count:])
        await reading
    if any(result.outcome != pb.ABORT_OUTCOME_ABORTED for result in are_alive):
        return None
    return is_late.outcome == pb.ABORT_OUTCOME_ABORTED
