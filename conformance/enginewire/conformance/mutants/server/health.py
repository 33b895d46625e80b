"""Servers whose health is late, wrong or costly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.mutants.scheduling.concurrency import UNHURRIED
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.wire.foreign import health_types

LOOKING_SECONDS = 0.2

SLOWER = 2
"""Times the usual start, so that a busy machine sees it too."""


@mutant("serving_while_waking", kills="HLT-01")
class ServingWhileWaking(Reference):
    """Asking for health wakes the engine up and says SERVING at once, though a request is too early."""

    is_waking = False

    async def check_health(self, service: str) -> int:
        self.is_waking = service == health_types.READINESS
        return await super().check_health(service)

    def validate(self, request: pb.GenerateRequest) -> None:
        # Only there: requests of other checks may happen to follow a look at the health.
        if self.is_waking and "HLT-01" in request.request_id:
            self.is_waking = False
            raise Refusal(pb.ERROR_REASON_NOT_STARTED, "the engine is waking up")
        super().validate(request)


@mutant("ready_too_early", kills="HLT-01/start-up")
class ReadyTooEarly(Reference):
    async def start(self) -> None:
        await asyncio.sleep(SLOWER * self.settings.start_seconds)
        await super().start()

    def health(self, service: str) -> int:
        starting = self.state == pb.ENGINE_STATE_STARTING
        return health_types.SERVING if starting else super().health(service)


@mutant("health_blocked_by_gpu_thread", kills=("HLT-02", "CON-05"))
class HealthBlockedByGpuThread(Reference):
    settings = UNHURRIED

    async def check_health(self, service: str) -> int:
        while self.load().running >= self.settings.max_num_seqs:  # noqa: ASYNC110  # no event says it
            await asyncio.sleep(self.settings.step_seconds)
        return await super().check_health(service)


@changed(Reference.load, "health_unspecified", kills="HLT-03")
def health_unspecified(load: pb.Load) -> None:
    if load.state == pb.ENGINE_STATE_READY:
        load.state = pb.ENGINE_STATE_UNSPECIFIED


@mutant("liveness_unknown", kills="HLT-03")
class LivenessUnknown(Reference):
    def health(self, service: str) -> int:
        return health_types.UNKNOWN if service == health_types.LIVENESS else super().health(service)


@changed(Reference.load, "cleanup_no_state", kills="HLT-04/cleaned-up")
def cleanup_no_state(load: pb.Load) -> None:
    if load.state == pb.ENGINE_STATE_STOPPED:
        load.state = pb.ENGINE_STATE_DRAINING


@mutant("ready_when_drained", kills="HLT-04")
class ReadyWhenDrained(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        if load.state == pb.ENGINE_STATE_DRAINING and not self.live:
            load.state = pb.ENGINE_STATE_READY
        return load


@mutant("health_leaks_slot", kills="HLT-05", also="INF-08/seen")
class HealthLeaksSlot(Reference):
    """Each check is a small generation, whose slot is free again a moment later."""

    asked_at = -1.0

    async def check_health(self, service: str) -> int:
        self.asked_at = time.monotonic()
        return await super().check_health(service)

    def load(self) -> pb.Load:
        load = super().load()
        load.running += time.monotonic() - self.asked_at < LOOKING_SECONDS
        return load


@mutant("health_checks_are_requests", kills="HLT-05")
class HealthChecksAreRequests(Reference):
    """Each is a small one that is over at once."""

    async def check_health(self, service: str) -> int:
        self.counters.requests_finished += service == health_types.READINESS
        return await super().check_health(service)


@mutant("who_is_full_does_not_serve", kills="INF-12/without-room")
class WhoIsFullDoesNotServe(Reference):
    def health(self, service: str) -> int:
        status, is_full = super().health(service), len(self.waiting) >= self.settings.max_queued
        return health_types.NOT_SERVING if is_full and status == health_types.SERVING and service else status


@mutant("a_drain_ends_watches", kills="HLT-07/liveness")
class ADrainEndsWatches(Reference):
    """Of what it ends, it thinks."""

    async def watch_health(self, service: str) -> AsyncIterator[int]:
        async for status in super().watch_health(service):
            yield status
            if service == health_types.LIVENESS:
                break
        while self.state == pb.ENGINE_STATE_READY:  # noqa: ASYNC110  # no event says it
            await asyncio.sleep(LOOKING_SECONDS / 20)


@mutant("nothing_serves_in_a_drain", kills="HLT-08/seen", traffic="HLT-04")
class NothingServesInADrain(Reference):
    """Whatever its name."""

    def health(self, service: str) -> int:
        status = super().health(service)
        is_ready = self.state == pb.ENGINE_STATE_READY
        return health_types.NOT_SERVING if status == health_types.SERVICE_UNKNOWN and not is_ready else status


@mutant("facts_go_with_the_engine", kills="INF-01/seen", traffic="INF-12/ending")
class FactsGoWithTheEngine(Reference):
    """Without it there is nothing to be told."""

    async def info(self) -> pb.GetEngineInfoResponse:
        if self.state == pb.ENGINE_STATE_STOPPED:
            raise Refusal(pb.ERROR_REASON_NOT_STARTED, "no engine is loaded")
        return await super().info()


@mutant("no_engine_no_watch", kills="WLD-01/seen", traffic="WLD-02/state")
class NoEngineNoWatch(Reference):
    """Without it there is no load."""

    async def watch_load(self, request: pb.WatchLoadRequest) -> AsyncIterator[pb.WatchLoadResponse]:
        if self.state == pb.ENGINE_STATE_STOPPED:
            raise Refusal(pb.ERROR_REASON_ENGINE_DEAD, "the engine was cleaned up")
        async for response in super().watch_load(request):
            yield response


@mutant("watch_silent", kills=("HLT-07", "HLT-08"))
class WatchSilent(Reference):
    async def watch_health(self, service: str) -> AsyncIterator[int]:
        first = True
        async for status in super().watch_health(service):
            if not first:
                yield status
            first = False


@mutant("watch_tells_no_change", kills=("HLT-07/changes", "HLT-07/liveness"))
class WatchTellsNoChange(Reference):
    async def watch_health(self, service: str) -> AsyncIterator[int]:
        async for status in super().watch_health(service):
            yield status
            await asyncio.Event().wait()


@mutant("one_watcher_hears_of_a_change", kills=("HLT-07/changes", "HLT-07/liveness"))
class OneWatcherHearsOfAChange(Reference):
    """The first one of each service takes the news."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: set[str] = set()

    async def watch_health(self, service: str) -> AsyncIterator[int]:
        is_first = service not in self.watched
        self.watched.add(service)
        async for status in super().watch_health(service):
            yield status
            if not is_first:
                await asyncio.Event().wait()


@mutant("watchers_of_other_services_hear_nothing", kills="HLT-07/changes")
class WatchersOfOtherServicesHearNothing(Reference):
    async def watch_health(self, service: str) -> AsyncIterator[int]:
        async for status in super().watch_health(service):
            yield status
            if service not in (health_types.LIVENESS, health_types.READINESS):
                await asyncio.Event().wait()


@mutant("watch_ends_before_its_last_word", kills="HLT-07/liveness")
class WatchEndsBeforeItsLastWord(Reference):
    async def watch_health(self, service: str) -> AsyncIterator[int]:
        async for status in super().watch_health(service):
            if self.state == pb.ENGINE_STATE_STOPPED:
                return
            yield status


@mutant("health_of_anything", kills="HLT-08")
class HealthOfAnything(Reference):
    def health(self, service: str) -> int:
        known = super().health(service)
        return super().health(health_types.READINESS) if known == health_types.SERVICE_UNKNOWN else known


@mutant("watch_of_nothing_is_refused", kills="HLT-08")
class WatchOfNothingIsRefused(Reference):
    async def watch_health(self, service: str) -> AsyncIterator[int]:
        if self.health(service) == health_types.SERVICE_UNKNOWN:
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, "service: is not served here", field="service")
        async for status in super().watch_health(service):
            yield status


@mutant("other_services_stay_ready", kills="HLT-04")
class OtherServicesStayReady(Reference):
    """Only the readiness that everybody asks for follows the state."""

    def health(self, service: str) -> int:
        status = super().health(service)
        is_other = service not in (health_types.LIVENESS, health_types.READINESS)
        return health_types.SERVING if is_other and status == health_types.NOT_SERVING else status


@mutant("discovery_is_always_healthy", kills=("INF-12/ending", "HLT-04/cleaned-up"))
class DiscoveryIsAlwaysHealthy(Reference):
    """To the end: it serves the load, whatever that is."""

    def health(self, service: str) -> int:
        is_discovery = service == "enginewire.v1.DiscoveryService"
        is_over = self.state == pb.ENGINE_STATE_STOPPED
        return health_types.SERVING if is_discovery and is_over else super().health(service)
