"""A subscriber to KV events: what it was told, and the cache that follows from it. Judges nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final, cast

from enginewire import v1 as pb
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.client import Call, Client
from enginewire.conformance.wire.violation import NotApplicable, Violation

LINGER_SECONDS: Final = 0.1


@dataclass(slots=True)
class Picture:
    """The blocks a subscriber knows after some events, and what it found odd on the way."""

    blocks: dict[int, int | None] = field(default_factory=dict)
    """Hash to parent."""
    sequence: int | None = None
    oddities: list[str] = field(default_factory=list)

    def apply(self, event: pb.KvEvent) -> None:
        """Follow one event."""
        if event.HasField("cleared"):
            self.blocks.clear()
        elif event.HasField("stored"):
            self._store(event.stored)
        else:
            for name in event.removed.block_hashes:
                if name not in self.blocks:
                    self.oddities.append(f"event {event.sequence} removes {name:x}, which is not stored")
                self.blocks.pop(name, None)
        self.sequence = event.sequence

    def _store(self, stored: pb.KvBlocksStored) -> None:
        parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
        for name in stored.block_hashes:
            self.blocks[name] = parent
            parent = name


@dataclass
class Subscription:
    """A SubscribeKvEvents under way. `elsewhere` counts the blocks of other ranks.

    `begun`: how many events had come when the snapshot was there as a whole, if that is known.
    """

    call: Call
    elsewhere: int = 0
    begun: int | None = None

    @property
    def messages(self) -> list[pb.SubscribeKvEventsResponse]:
        """All messages so far."""
        return cast(list[pb.SubscribeKvEventsResponse], self.call.exchange.messages)

    @property
    def events(self) -> list[pb.KvEvent]:
        """All events so far."""
        return [event for message in self.messages for event in message.events]

    @property
    def snapshot(self) -> list[pb.KvEvent]:
        """What it begins with, up to the newest change it includes.

        A block that was not there when it was whole belongs to a change, whatever number that has.
        """
        events = self.events
        if not events or not events[0].HasField("cleared"):
            return []
        whole = events if self.begun is None else events[: self.begun]
        known = set(hashes(whole))
        told = takewhile(lambda event: event.sequence == events[0].sequence, events)
        return [
            event
            for place, event in enumerate(told)
            if place < len(whole)
            or (event.stored.block_hashes and known.issuperset(event.stored.block_hashes))
        ]

    @property
    def changes(self) -> list[pb.KvEvent]:
        """What happened after the snapshot."""
        return self.events[len(self.snapshot) :]

    def picture(self) -> Picture:
        """The cache as it is now, by what was told."""
        picture = Picture()
        for event in self.events:
            picture.apply(event)
        return picture

    def has_had(self, sequence: int) -> bool:
        """It was told of every change up to this one."""
        return bool(self.events) and self.events[-1].sequence >= sequence

    def is_like(self, other: Subscription) -> bool:
        """Both know the same blocks."""
        return self.picture().blocks.keys() == other.picture().blocks.keys()

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Read until something holds; False when it does not in that time. An end is a Violation."""
        deadline = time.monotonic() + seconds
        while not holds():
            reading = self._reading()
            await asyncio.wait([reading], timeout=max(deadline - time.monotonic(), 0))
            if not reading.done():
                return False
            self._next = None
            if await reading is None:
                raise Violation("a subscription ended", expected="still open", seen=self.call.exchange.status)
        return True

    _next: asyncio.Task[object] | None = None

    def _reading(self) -> asyncio.Task[object]:
        """The one read that is under way: a read that is given up would end the call."""
        self._next = self._next or asyncio.ensure_future(_read(self.call))
        return self._next

    def close(self) -> None:
        """Subscribe no more."""
        self.call.cancel()


async def _read(call: Call) -> object:
    return await anext(call, None)


async def subscribe(
    ctx: Context, after: int | None = None, client: Client | None = None, place: int = 0
) -> Subscription:
    """Subscribe to a rank, by its place among the sources; NotApplicable where others publish."""
    source = (await sources(ctx))[place]
    if source.endpoint:
        raise NotApplicable("the events are published elsewhere")
    request = pb.SubscribeKvEventsRequest(dp_rank=source.dp_rank, after_sequence=after)
    call = (client or ctx.client).call("KvService.SubscribeKvEvents", request, timeout=ctx.bounds.check)
    return Subscription(call)


async def watching(ctx: Context) -> Subscription:
    """A subscription whose snapshot has been read, whatever number of messages it is."""
    cached = (await ctx.idle()).kv_blocks_cached
    # Each rank once, whatever the sources are.
    places = {source.dp_rank: place for place, source in reversed([*enumerate(await sources(ctx))])}
    ranks = [await _begun(ctx, place) for place in sorted(places.values())]
    subscription, *others = ranks

    def has_all() -> bool:
        subscription.elsewhere = sum(len(other.picture().blocks) for other in others)
        return len(subscription.picture().blocks) + subscription.elsewhere == cached

    for rank in ranks:
        is_whole = await rank.until(has_all, ctx.bounds.reaction)
        if is_whole and rank is subscription:
            # There may be more than there should be.
            await rank.until(lambda: not has_all(), LINGER_SECONDS * ctx.bounds.scale)
            rank.begun = len(rank.events)
    for other in others:
        other.close()
    return subscription


async def caught_up(ctx: Context, *subscriptions: Subscription) -> Subscription:
    """Read on until each has had what the snapshot of who comes now includes; that one's subscription.

    Numbers of blocks do not tell how far one is: a full cache has as many before and after each request.
    """
    now = await watching(ctx)
    for each in subscriptions:
        await each.until(partial(each.has_had, now.events[0].sequence), ctx.bounds.reaction)
    return now


async def _begun(ctx: Context, place: int) -> Subscription:
    """A subscription to a rank, by its place among the sources, with its first message."""
    subscription = await subscribe(ctx, place=place)
    if not await subscription.until(lambda: bool(subscription.events), ctx.bounds.answer):
        raise Violation("a subscription does not begin", expected="a snapshot", seen="nothing")
    return subscription


async def sources(ctx: Context) -> list[pb.KvEventSource]:
    """All sources; none is a Violation."""
    exchange = await ctx.client.ask("KvService.GetKvEventSources", pb.GetKvEventSourcesRequest())
    found = list(cast(pb.GetKvEventSourcesResponse, exchange.response()).sources)
    if not found:
        raise Violation("GetKvEventSources names no source", expected="one per rank")
    return found


def hashes(events: Iterable[pb.KvEvent]) -> list[int]:
    """Of all blocks that were stored, in order."""
    return [name for event in events for name in event.stored.block_hashes]
