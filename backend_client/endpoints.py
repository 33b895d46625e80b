"""The engines a backend can choose from: what is known of each, and which one is next.

Holds the load that engines report and the choice by it, and by what they have computed before. Knows
nothing about requests or retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import grpc

from backend_client.engine_client import EngineClient
from backend_client.failure import RequestFailed, failed
from backend_client.load_fields import kv_use
from backend_client.prefix_affinity import PrefixChain, PrefixMemory
from enginewire import v1 as pb

if TYPE_CHECKING:
    from backend_client.suspicion import Suspicion

WATCH_INTERVAL_MS: Final = 50
# How soon to look again for an engine that is away.
REWATCH_SECONDS: Final = 0.1
# An engine that does not say within this time that it is still there is not.
GONE_SECONDS: Final = 1.0
# An engine that nobody watches, or that cannot be watched, is taken to be there.
# How much more than the least burdened engine one may have that knows the beginning of the prompt.
WAITING_SLACK: Final = 1
KV_USE_SLACK: Final = 0.25
USABLE: Final = frozenset({pb.ENGINE_STATE_READY, pb.ENGINE_STATE_UNSPECIFIED})


class Endpoint:
    """One engine, as last heard of."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.load = pb.Load()
        # Requests of this backend; the load reported last knows about `_in_flight_then` of them.
        self.in_flight = 0
        self._in_flight_then = 0
        # Requests that were in an engine which died; and of the last death here the life, when that was
        # first asked, and how many requests were in it.
        self.suspects: set[Suspicion] = set()
        self.casualties = "", 0.0, 0

    @property
    def is_usable(self) -> bool:
        """It takes requests, as far as is known."""
        return self.load.state in USABLE

    @property
    def is_draining(self) -> bool:
        """It finishes what it has and takes nothing more."""
        return self.load.state == pb.ENGINE_STATE_DRAINING

    @property
    def burden(self) -> tuple[float, int]:
        """Smaller is better: what waits there, cache in use, and what this backend has sent since."""
        return self.waiting + kv_use(self.load), self.in_flight

    @property
    def waiting(self) -> int:
        """What waits there, and what this backend has sent since that was reported."""
        return self.load.waiting + self.in_flight - self._in_flight_then

    def is_nearly_as_free_as(self, least: Endpoint) -> bool:
        """It may be taken for another reason than its load."""
        return (
            self.waiting <= least.waiting + WAITING_SLACK
            and kv_use(self.load) <= kv_use(least.load) + KV_USE_SLACK
        )

    async def has_handed_back(self, lifetime_id: str) -> bool:
        """What that life of the engine has cancelled unasked can go on elsewhere: it drains or is over.

        The watched load may not say so yet, so the engine is asked.
        """
        if self.is_draining:
            return True
        try:
            load = await self.client.load(GONE_SECONDS)
        except RequestFailed as failure:
            return failure.code is not grpc.StatusCode.UNIMPLEMENTED
        return load.state not in USABLE or load.engine_lifetime_id != lifetime_id

    def heard(self, load: pb.Load) -> None:
        """It reported."""
        self.load = load
        self._in_flight_then = self.in_flight

    def lost(self) -> None:
        """It does not answer."""
        self.load = pb.Load(state=pb.ENGINE_STATE_DEAD)


class Endpoints:
    """The engines of one backend. While entered they are watched; leaving closes their clients."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self.all = [Endpoint(client) for client in clients]
        self._changed = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []
        self._prefixes: PrefixMemory[Endpoint] = PrefixMemory()

    async def __aenter__(self) -> Self:
        self._watchers = [
            asyncio.create_task(self._watch(endpoint), name=f"watch {endpoint.client.target}")
            for endpoint in self.all
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for endpoint in self.all:
            await endpoint.client.close()

    @property
    def has_choice(self) -> bool:
        """There is more than one."""
        return len(self.all) > 1

    async def wait_ready(self, timeout: float) -> EngineClient:
        """The first engine that is ready. Raises RequestFailed when none is after `timeout` seconds."""
        tasks = {asyncio.create_task(e.client.wait_ready(timeout)): e for e in self.all}
        waiting = set(tasks)
        try:
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        endpoint = tasks[task]
                        if not endpoint.is_usable:
                            # Its watcher has not looked again yet.
                            endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY))
                        return endpoint.client
                if not waiting:
                    # All failed: one of them says why.
                    done.pop().result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def pick(
        self,
        timeout: float | None,
        not_before: Mapping[Endpoint, float] | None = None,
        unfit: Collection[Endpoint] = (),
        prefix: PrefixChain = (),
    ) -> Endpoint:
        """The least burdened engine, as soon as one is ready.

        Of those that are nearly as free, the one that last got the longest common `prefix` is preferred.
        `not_before` are times of time.monotonic at which engines want to be asked again; `unfit` ones are
        never chosen. Raises RequestFailed after `timeout` seconds, and when nobody is left.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        times = not_before or {}
        while True:
            now = time.monotonic()
            usable = [e for e in self.all if e.is_usable and e not in unfit]
            free = [e for e in usable if times.get(e, now) <= now]
            if free:
                return self._best(free, prefix)
            if now >= deadline or all(e in unfit for e in self.all):
                raise _none_ready()
            await self.wait_for_change(min([deadline, *(times[e] for e in usable)]) - now)

    def _best(self, free: Sequence[Endpoint], prefix: PrefixChain) -> Endpoint:
        least = min(free, key=lambda endpoint: endpoint.burden)
        if not prefix:
            return least
        known = self._prefixes.find(prefix, lambda e: e in free and e.is_nearly_as_free_as(least))
        best = known or least
        self._prefixes.remember(prefix, best)
        return best

    async def info(self, timeout: float | None = None) -> pb.GetEngineInfoResponse:
        """Facts of an engine, of one that takes requests if there is one: all serve the same model.

        Raises RequestFailed after `timeout` seconds.
        """
        return await self._any().client.info(timeout)

    async def adapters(self, timeout: float | None = None) -> Sequence[pb.Adapter]:
        """Those of the engine that `info` is about. Raises RequestFailed after `timeout` seconds."""
        return await self._any().client.adapters(timeout)

    def _any(self) -> Endpoint:
        return next((e for e in self.all if e.is_usable), self.all[0])

    def is_alive(self, lifetime_id: str) -> bool:
        """That life of an engine has been heard of lately and did not end."""
        return any(e.load.engine_lifetime_id == lifetime_id for e in self.all)

    async def wait_for_change(self, seconds: float) -> None:
        """Until an engine's state changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._changed.wait()

    async def _watch(self, endpoint: Endpoint) -> None:
        while True:
            try:
                async for load in endpoint.client.watch_load(WATCH_INTERVAL_MS):
                    state = endpoint.load.state
                    endpoint.heard(load)
                    if load.state != state:
                        self._change()
            except RequestFailed as failure:
                if failure.code is grpc.StatusCode.UNIMPLEMENTED:
                    return
            endpoint.lost()
            self._change()
            await asyncio.sleep(REWATCH_SECONDS)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _none_ready() -> RequestFailed:
    return failed(
        grpc.StatusCode.UNAVAILABLE,
        pb.ERROR_REASON_NOT_STARTED,
        "no engine is ready for the request",
        retryable=True,
    )
