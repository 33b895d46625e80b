"""The engines a backend can choose from: what is known of each, and which one is next.

Holds the load that engines report and the choice by it, by what they have computed before, and by hints of
callers. Knows nothing about requests or retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Final, Self

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed, failed
from enginewire.backend.engines.load_fields import kv_use
from enginewire.backend.engines.prefix_affinity import PrefixChain, PrefixMemory
from enginewire.backend.engines.routing_hints import NO_HINTS, Hints, refused
from enginewire.backend.engines.sessions import Sessions
from enginewire.backend.engines.suspicion import Suspicion

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
        # None: it has none, or has not said so yet.
        self.worker_id: int | None = None
        self.is_identified = False
        self._identified_life = ""
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

    async def identify(self) -> None:
        """Learn who it is, once for each of its lives, if it can be asked now."""
        if self.is_identified or not self.is_usable:
            return
        with contextlib.suppress(RequestFailed):
            info = await self.client.info(GONE_SECONDS)
            self.worker_id = info.worker_id if info.HasField("worker_id") else None
            self.is_identified, self._identified_life = True, info.engine_lifetime_id

    def heard(self, load: pb.Load) -> None:
        """It reported."""
        if self.is_identified and load.engine_lifetime_id not in ("", self._identified_life):
            self.is_identified = False
            self.client.forget()
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
        self._sessions: Sessions[Endpoint] = Sessions()

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
        hints: Hints = NO_HINTS,
    ) -> Endpoint:
        """The least burdened engine, as soon as one is ready.

        Of those that are nearly as free, the one that last got the longest common `prefix` is preferred.
        `hints` come before that: whom they do not admit is never chosen, and the session's engine, or else
        that of the routing key, is chosen whatever it has to do. `not_before` are times of time.monotonic at
        which engines want to be asked again; `unfit` ones are never chosen. Raises RequestFailed after
        `timeout` seconds, and when nobody is left.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        times = not_before or {}
        while True:
            now = time.monotonic()
            admitted = await self._admitted(hints) if hints.field else self.all
            usable = [e for e in admitted if e.is_usable and e not in unfit]
            free = [e for e in usable if times.get(e, now) <= now]
            if free:
                return self._best(free, prefix, hints)
            if now >= deadline or (admitted and all(e in unfit for e in admitted)):
                raise _none_ready(hints.field)
            await self.wait_for_change(min([deadline, *(times[e] for e in usable)]) - now)

    def leave(self, hints: Hints) -> None:
        """A request with these hints has ended."""
        if hints.session is not None:
            self._sessions.end(hints.session)

    async def _admitted(self, hints: Hints) -> Sequence[Endpoint]:
        """Whom the hints admit; none while somebody has not said yet who it is. Raises RequestFailed."""
        if unknown := [endpoint for endpoint in self.all if not endpoint.is_identified]:
            await asyncio.gather(*(endpoint.identify() for endpoint in unknown))
        admitted = [endpoint for endpoint in self.all if hints.admits(endpoint.worker_id)]
        if not admitted and all(endpoint.is_identified for endpoint in self.all):
            raise refused(hints.field, "names no engine of this backend")
        return admitted

    def _best(self, free: Sequence[Endpoint], prefix: PrefixChain, hints: Hints) -> Endpoint:
        best = self._of_session(free, hints)
        if best is None and hints.routing_key:
            best = max(free, key=lambda endpoint: _weight(endpoint, hints.routing_key))
        best = best or self._least(free, prefix)
        if prefix:
            self._prefixes.remember(prefix, best)
        if hints.session is not None:
            self._sessions.keep(hints.session, best)
        return best

    def _of_session(self, free: Sequence[Endpoint], hints: Hints) -> Endpoint | None:
        known = self._sessions.find(hints.session) if hints.session is not None else None
        return known if known in free else None

    def _least(self, free: Sequence[Endpoint], prefix: PrefixChain) -> Endpoint:
        least = min(free, key=lambda endpoint: endpoint.burden)
        if not prefix:
            return least
        return self._prefixes.find(prefix, lambda e: e in free and e.is_nearly_as_free_as(least)) or least

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


def _weight(endpoint: Endpoint, key: str) -> bytes:
    """Rendezvous hashing: when an engine comes or goes, only its own keys move. The same in every backend."""
    return blake2b(f"{endpoint.client.target}\0{key}".encode()).digest()


def _none_ready(field: str) -> RequestFailed:
    """`field` is the hint that has left so few."""
    return failed(
        grpc.StatusCode.UNAVAILABLE,
        pb.ERROR_REASON_NOT_STARTED,
        f"{field}: no engine that it admits is ready" if field else "no engine is ready for the request",
        retryable=True,
        field=field,
    )
