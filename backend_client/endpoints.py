"""The engines a backend can choose from: what is known of each, and which one is next.

Holds the load that engines report and the choice by it. Knows nothing about requests or retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import grpc

from backend_client.engine_client import EngineClient
from backend_client.failure import RequestFailed, failed
from enginewire import v1 as pb

WATCH_INTERVAL_MS: Final = 50
# How soon to look again for an engine that is away.
REWATCH_SECONDS: Final = 0.1
# An engine that nobody watches, or that cannot be watched, is taken to be there.
USABLE: Final = frozenset({pb.ENGINE_STATE_READY, pb.ENGINE_STATE_UNSPECIFIED})


class Endpoint:
    """One engine, as last heard of."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.load = pb.Load()
        # Requests of this backend; the load reported last knows about `_in_flight_then` of them.
        self.in_flight = 0
        self._in_flight_then = 0

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
        load = self.load
        kv_use = load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0
        return load.waiting + self.in_flight - self._in_flight_then + kv_use, self.in_flight

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

    async def wait_ready(self, timeout: float) -> EngineClient:
        """The first engine that is ready. Raises RequestFailed when none is after `timeout` seconds."""
        tasks = {asyncio.create_task(e.client.wait_ready(timeout)): e.client for e in self.all}
        waiting = set(tasks)
        try:
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        return tasks[task]
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
    ) -> Endpoint:
        """The least burdened engine, as soon as one is ready.

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
                return min(free, key=lambda endpoint: endpoint.burden)
            if now >= deadline or all(e in unfit for e in self.all):
                raise _none_ready()
            await self._wait_for_change(min([deadline, *(times[e] for e in usable)]) - now)

    def is_alive(self, lifetime_id: str) -> bool:
        """That life of an engine has been heard of lately and did not end."""
        return any(e.load.engine_lifetime_id == lifetime_id for e in self.all)

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

    async def _wait_for_change(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._changed.wait()


def _none_ready() -> RequestFailed:
    return failed(
        grpc.StatusCode.UNAVAILABLE,
        pb.ERROR_REASON_NOT_STARTED,
        "no engine is ready for the request",
        retryable=True,
    )
