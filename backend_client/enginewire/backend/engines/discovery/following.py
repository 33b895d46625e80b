"""Engines of a backend join and leave as its sources say. Knows nothing about how those find out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.discovery.address import Address, Source
from enginewire.backend.engines.discovery.sources import sources_of
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.likeness import begins_like

# However often engines are lost, nobody is asked more often.
SHORTEST_PAUSE_SECONDS: Final = 1.0
INFO_SECONDS: Final = 5.0
log = logging.getLogger(__name__)

Dial = Callable[[Address], EngineClient]


@asynccontextmanager
async def endpoints_of(targets: Sequence[str], dial: Dial, interval: float) -> AsyncIterator[Endpoints]:
    """The engines of these targets, which are looked up every `interval` seconds. Raises InvalidTargets."""
    fixed, sources = sources_of(targets)
    async with Endpoints([dial(address) for address in fixed]) as engines:
        if not sources:
            yield engines
            return
        members = _Members(engines, dial, fixed)
        engines.admits = members.admits
        tasks = [asyncio.create_task(members.follow(source, interval)) for source in sources]
        try:
            yield engines
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Members:
    """The engines that somebody names. One that is named twice is one."""

    def __init__(self, engines: Endpoints, dial: Dial, fixed: Sequence[Address]) -> None:
        self._engines = engines
        self._dial = dial
        self._fixed = tuple(fixed)
        self._said: dict[Source, tuple[Address, ...]] = {}
        self._origin: pb.GetEngineInfoResponse | None = None

    async def admits(self, client: EngineClient) -> bool:
        """It serves what the first one does, whose tokenizer makes the text. Raises RequestFailed."""
        info = await client.info(INFO_SECONDS)
        if self._origin is None:
            self._origin = info
        is_like_it = begins_like(self._origin, info)
        if not is_like_it:
            served, model = self._origin.config.model, info.config.model
            log.warning("%s is not used: it serves %r, not %r as the others", client.target, model, served)
        return is_like_it

    async def follow(self, source: Source, interval: float) -> None:
        """Look now, every `interval` seconds, and soon after an engine was lost."""
        while True:
            began = time.monotonic()
            if (said := await source.look()) is not None:
                self._said[source] = said
                self._update()
            await self._engines.wait_for_change(interval)
            await asyncio.sleep(min(SHORTEST_PAUSE_SECONDS, interval) - (time.monotonic() - began))

    def _update(self) -> None:
        named = {each.target: each for group in (self._fixed, *self._said.values()) for each in group}
        known: dict[str, Endpoint] = {each.target: each for each in self._engines.all}
        for target, address in named.items():
            if target not in known:
                log.info("%s joins", target)
                self._engines.join(self._dial(address))
        for target, endpoint in known.items():
            if target not in named:
                log.info("%s leaves", target)
                self._engines.leave_out(endpoint)
