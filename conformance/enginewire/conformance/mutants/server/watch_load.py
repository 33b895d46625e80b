"""Servers whose load is hard to watch."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import without

Loads = AsyncIterator[pb.WatchLoadResponse]


@mutant("watch_waits_for_a_change", kills="WLD-01")
class WatchWaitsForAChange(Reference):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if request.min_interval_ms > 1000:
            await asyncio.sleep(3600)
        async for response in super().watch_load(request):
            yield response


@mutant("watch_sends_once", kills="WLD-02")
class WatchSendsOnce(Reference):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        before = self.load()
        async for response in super().watch_load(request):
            # Whoever looks at a busy server sees it change, so that only the idle one stays silent.
            if before.running or response.load.running == before.running:
                yield response


@mutant("watch_ends_with_the_drain", kills="WLD-02/draining")
class WatchEndsWithTheDrain(Reference):
    """With that of a server that is busy."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        async for response in super().watch_load(request):
            yield response
            if response.load.state == pb.ENGINE_STATE_DRAINING and response.load.running:
                return


@mutant("watch_ignores_its_interval", kills="WLD-03")
class WatchIgnoresItsInterval(Reference):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if request.min_interval_ms == 100:
            request.min_interval_ms = 10
        async for response in super().watch_load(request):
            yield response


@mutant("watch_has_the_shortest_interval_of_its_own", kills="WLD-03")
class WatchHasTheShortestIntervalOfItsOwn(Reference):
    """Where nobody names one."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if not request.HasField("min_interval_ms"):
            request.min_interval_ms = 10
        async for response in super().watch_load(request):
            yield response


@mutant("watch_sends_once_a_second_at_least", kills="WLD-03")
class WatchSendsOnceASecondAtLeast(Reference):
    """So that nobody waits for longer."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if request.min_interval_ms > 1000:
            request.min_interval_ms = 1000
        async for response in super().watch_load(request):
            yield response


@mutant("watches_share_an_interval", kills="WLD-03")
class WatchesShareAnInterval(Reference):
    """That of whoever came last."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        async for response in super().watch_load(request):
            yield response
            break
        self._interval, sent = request.min_interval_ms or 100, response.load
        while True:
            await asyncio.sleep(self._interval / 1000)
            if (load := self.load()) != sent:
                yield pb.WatchLoadResponse(load=load)
                sent = load


@mutant("watch_knows_three_intervals", kills="WLD-03")
class WatchKnowsThreeIntervals(Reference):
    """The longest of them is the usual one."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if 100 < request.min_interval_ms <= 1000:
            request.min_interval_ms = 100
        async for response in super().watch_load(request):
            yield response


@mutant("watch_clamps_its_interval", kills="WLD-04")
class WatchClampsItsInterval(Reference):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if request.HasField("min_interval_ms"):
            request.min_interval_ms = max(request.min_interval_ms, 10)
        async for response in super().watch_load(request):
            yield response


@mutant("watch_that_nobody_offers", kills="ERR-17/watch_load")
class WatchThatNobodyOffers(Reference):
    settings = without("watch_load")

    def allows(self, capability: str) -> bool:
        return capability == "watch_load" or super().allows(capability)


@mutant("watch_leaves_out_what_comes_too_soon", kills="WLD-02")
class WatchLeavesOutWhatComesTooSoon(Reference):
    """A change within the interval is dropped, and not told later."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        interval, told = request.min_interval_ms, -math.inf
        if interval >= 300:
            request.min_interval_ms = 10
        async for response in super().watch_load(request):
            if interval < 300 or time.monotonic() >= told + interval / 1000:
                told = time.monotonic()
                yield response


@mutant("watch_does_not_look_at_the_queue", kills="WLD-02/queued")
class WatchDoesNotLookAtTheQueue(Reference):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        running = -1
        async for response in super().watch_load(request):
            if response.load.running != running:
                running = response.load.running
                yield response


@mutant("watch_does_not_look_at_the_state", kills="WLD-02/state")
class WatchDoesNotLookAtTheState(Reference):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        told = pb.Load()
        async for response in super().watch_load(request):
            told.state = response.load.state
            if response.load != told:
                told.CopyFrom(response.load)
                yield response


@mutant("watch_makes_up_for_a_lull", kills="WLD-03")
class WatchMakesUpForALull(Reference):
    """Each message is due an interval after the one before was due."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> Loads:
        if request.min_interval_ms != 40:
            async for response in super().watch_load(request):
                yield response
        due, sent = time.monotonic(), pb.Load()
        while True:
            load = self.load()
            if load != sent and time.monotonic() >= due:
                yield pb.WatchLoadResponse(load=load)
                due, sent = due + request.min_interval_ms / 1000, load
            await asyncio.sleep(0.001)
