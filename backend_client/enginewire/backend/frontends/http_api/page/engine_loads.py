"""The loads of a backend's engines as they are when somebody looks, beside requests that fit them.

A watched load is a moment old, and an engine may not let itself be watched: here each is asked. Knows
nothing about how loads are shown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.failure import RequestFailed

# An engine that takes longer is shown as it was last heard of.
ANSWER_SECONDS: Final = 0.5
# A load and the outputs of the same step come by different ways; the later one is not far behind.
MAX_LOOKS: Final = 5
PAUSE_SECONDS: Final = 0.01


class EngineLoads:
    """What all engines bear now."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def look(self) -> Mapping[Endpoint, pb.Load]:
        """The load of each engine. As long as they tell of too few requests they are asked again."""
        for _ in range(MAX_LOOKS - 1):
            loads = await self._asked()
            if self._fit(loads):
                return loads
            await asyncio.sleep(PAUSE_SECONDS)
        return await self._asked()

    async def _asked(self) -> Mapping[Endpoint, pb.Load]:
        # Meanwhile engines may come and go.
        asked = [*self._backend.engines.all]
        return dict(zip(asked, await asyncio.gather(*map(_load_of, asked)), strict=True))

    def _fit(self, loads: Mapping[Endpoint, pb.Load]) -> bool:
        """Every engine knows of at least the requests that it is seen to answer; preempted ones wait."""
        answering = Counter(live.target for live in self._backend.activity.live if live.phase == "decode")
        return all(
            load.running + load.waiting >= answering[endpoint.client.target]
            for endpoint, load in loads.items()
        )


async def _load_of(endpoint: Endpoint) -> pb.Load:
    try:
        return await endpoint.client.load(ANSWER_SECONDS)
    except RequestFailed:
        return endpoint.load
