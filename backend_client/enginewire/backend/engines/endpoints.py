"""The engines a backend can choose from: what is known of each, and who could take a request now.

Holds the load that engines report. Knows nothing about requests or retries, nor which engine is the best.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Final, Self

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.choice.policy import Policy, PrefixThenLoad
from enginewire.backend.engines.choice.prefix_affinity import PrefixChain
from enginewire.backend.engines.choice.routing_hints import NO_HINTS, Hints, refused
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.failure import RequestFailed, failed

WATCH_INTERVAL_MS: Final = 50
# Of many engines each reports less often, so that all of them take no more than a thousand reports a second.
WATCH_INTERVAL_PER_ENGINE_MS: Final = 1
# How soon to look again for an engine that is away.
REWATCH_SECONDS: Final = 0.1
# How long an engine that has left must have had nothing to do: who has just chosen it shall still reach it.
IDLE_SECONDS: Final = 5.0


class Endpoints:
    """The engines of one backend. While entered they are watched; leaving closes their clients."""

    def __init__(self, clients: Sequence[EngineClient], policy: Policy[Endpoint] | None = None) -> None:
        self._numbers = count()
        self.all = [Endpoint(client, next(self._numbers)) for client in clients]
        # Where engines join and leave: whether one that is ready may be used. Raises RequestFailed.
        self.admits: Callable[[EngineClient], Awaitable[bool]] | None = None
        self._changed = asyncio.Event()
        self._watchers: dict[Endpoint, asyncio.Task[None]] = {}
        self._leaving: dict[Endpoint, asyncio.Task[None]] = {}
        self._policy = policy or PrefixThenLoad()

    async def __aenter__(self) -> Self:
        for endpoint in self.all:
            self._begin_watch(endpoint)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._watchers.values(), *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for endpoint in [*self.all, *self._leaving]:
            await endpoint.client.close()

    def join(self, client: EngineClient) -> None:
        """One more engine, which is chosen as soon as it says that it is ready."""
        endpoint = Endpoint(client, next(self._numbers))
        endpoint.load = pb.Load(state=pb.ENGINE_STATE_STARTING)
        self.all.append(endpoint)
        self._begin_watch(endpoint)
        self._change()

    def leave_out(self, endpoint: Endpoint) -> None:
        """It is chosen no more. What it has to do for this backend it may finish."""
        self.all.remove(endpoint)
        self._policy.forget(endpoint)
        name = f"leave {endpoint.client.target}"
        self._leaving[endpoint] = asyncio.create_task(self._part_from(endpoint), name=name)
        self._change()

    async def _part_from(self, endpoint: Endpoint) -> None:
        idle_since = time.monotonic()
        while time.monotonic() < idle_since + IDLE_SECONDS:
            await asyncio.sleep(IDLE_SECONDS / 10)
            if endpoint.in_flight:
                idle_since = time.monotonic()
        self._watchers.pop(endpoint).cancel()
        await endpoint.client.close()
        del self._leaving[endpoint]

    @property
    def are_followed(self) -> bool:
        """Engines may join and leave."""
        return self.admits is not None

    @property
    def has_choice(self) -> bool:
        """There is more than one, or may be soon."""
        return len(self.all) > 1 or self.are_followed

    async def wait_ready(self, timeout: float) -> EngineClient:
        """The first engine that is ready. Raises RequestFailed when none is after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        tasks: dict[asyncio.Task[object], Endpoint] = {}
        try:
            while True:
                left = max(0.0, deadline - time.monotonic())
                for endpoint in [each for each in self.all if each not in tasks.values()]:
                    tasks[asyncio.create_task(endpoint.client.wait_ready(left))] = endpoint
                if (ready := _first_ready(tasks)) is not None and await self._may_be_here(ready):
                    return ready.client
                waiting = [task for task in tasks if not task.done()]
                if not waiting and (not left or not self.are_followed):
                    raise _why(tasks)
                await self._any_of(waiting, left)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _any_of(self, waiting: Sequence[asyncio.Task[object]], seconds: float) -> None:
        """Until one has ended or, while engines may join, one has joined."""
        if not self.are_followed:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return
        changed = asyncio.create_task(self.wait_for_change(seconds))
        await asyncio.wait([*waiting, changed], return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()

    async def pick(
        self,
        timeout: float | None,
        not_before: Mapping[Endpoint, float] | None = None,
        unfit: Collection[Endpoint] = (),
        prefix: PrefixChain = (),
        hints: Hints = NO_HINTS,
    ) -> Endpoint:
        """The engine that the policy chooses, as soon as one is ready.

        Whom the `hints` do not admit is never chosen. `not_before` are times of time.monotonic at which
        engines want to be asked again; `unfit` ones are never chosen. Raises RequestFailed after `timeout`
        seconds, and when nobody is left.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        times = not_before or {}
        while True:
            now = time.monotonic()
            admitted = await self._admitted(hints) if hints.field else self.all
            usable = [e for e in admitted if e.is_usable and e not in unfit]
            free = [e for e in usable if times.get(e, now) <= now]
            if free:
                return self._policy.choose(free, prefix, hints)
            if now >= deadline or (admitted and all(e in unfit for e in admitted)):
                raise _none_ready(hints.field)
            await self.wait_for_change(min([deadline, *(times[e] for e in usable)]) - now)

    def leave(self, hints: Hints) -> None:
        """A request with these hints has ended."""
        self._policy.end(hints)

    async def _admitted(self, hints: Hints) -> Sequence[Endpoint]:
        """Whom the hints admit; none while somebody has not said yet who it is. Raises RequestFailed."""
        if unknown := [endpoint for endpoint in self.all if not endpoint.is_identified]:
            await asyncio.gather(*(endpoint.identify() for endpoint in unknown))
        admitted = [endpoint for endpoint in self.all if hints.admits(endpoint.worker_id)]
        if self.all and not admitted and all(endpoint.is_identified for endpoint in self.all):
            raise refused(hints.field, "names no engine of this backend")
        return admitted

    async def info(self, timeout: float | None = None) -> pb.GetEngineInfoResponse:
        """Facts of an engine, of one that takes requests if there is one: all serve the same model.

        Raises RequestFailed after `timeout` seconds.
        """
        return await self.client.info(timeout)

    async def adapters(self, timeout: float | None = None) -> Sequence[pb.Adapter]:
        """Those of the engine that `info` is about. Raises RequestFailed after `timeout` seconds."""
        return await self.client.adapters(timeout)

    @property
    def client(self) -> EngineClient:
        """That of an engine that takes requests, if one does. Raises RequestFailed where there is none."""
        if not self.all:
            raise _none_ready("")
        return next((e for e in self.all if e.is_usable), self.all[0]).client

    def is_alive(self, lifetime_id: str) -> bool:
        """That life of an engine has been heard of lately and did not end."""
        return any(e.load.engine_lifetime_id == lifetime_id for e in [*self.all, *self._leaving])

    async def wait_for_change(self, seconds: float) -> None:
        """Until an engine's state changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._changed.wait()

    async def _may_be_here(self, endpoint: Endpoint) -> bool:
        if self.admits is not None:
            endpoint.is_foreign = not await self.admits(endpoint.client)
        return not endpoint.is_foreign

    @property
    def _interval_ms(self) -> int:
        return max(WATCH_INTERVAL_MS, WATCH_INTERVAL_PER_ENGINE_MS * len(self.all))

    def _begin_watch(self, endpoint: Endpoint) -> None:
        name = f"watch {endpoint.client.target}"
        self._watchers[endpoint] = asyncio.create_task(self._watch(endpoint), name=name)

    async def _watch(self, endpoint: Endpoint) -> None:
        while True:
            try:
                async for load in endpoint.client.watch_load(self._interval_ms):
                    state = endpoint.load.state
                    if load.state == pb.ENGINE_STATE_READY != state:
                        await self._may_be_here(endpoint)
                    endpoint.heard(load)
                    endpoint.outage.ends()
                    if load.state != state:
                        self._change()
            except RequestFailed as failure:
                if failure.code is grpc.StatusCode.UNIMPLEMENTED:
                    endpoint.load = pb.Load()
                    self._change()
                    return
                endpoint.outage.goes_on(str(failure))
            if endpoint.load.state != pb.ENGINE_STATE_DEAD:
                endpoint.lost()
                self._change()
            await asyncio.sleep(REWATCH_SECONDS)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _none_ready(field: str) -> RequestFailed:
    """`field` is the hint that has left so few."""
    return failed(
        grpc.StatusCode.UNAVAILABLE,
        pb.ERROR_REASON_NOT_STARTED,
        f"{field}: no engine that it admits is ready" if field else "no engine is ready for the request",
        retryable=True,
        field=field,
    )


def _first_ready(tasks: Mapping[asyncio.Task[object], Endpoint]) -> Endpoint | None:
    for task, endpoint in tasks.items():
        if task.done() and task.exception() is None and not endpoint.is_foreign:
            if not endpoint.is_usable:
                # Its watcher has not looked again yet.
                endpoint.heard(pb.Load(state=pb.ENGINE_STATE_READY))
            return endpoint
    return None


def _why(tasks: Iterable[asyncio.Task[object]]) -> BaseException:
    """What the one that was asked last said; all have failed."""
    said = [task.exception() for task in tasks]
    return (said[-1] if said else None) or _none_ready("")
