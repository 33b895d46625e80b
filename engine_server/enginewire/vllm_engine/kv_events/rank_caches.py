"""The prefix caches of all ranks: what each one holds, for subscribers and counts. Imports no vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest
from enginewire.vllm_engine.kv_events.cached_blocks import CachedBlocks

if TYPE_CHECKING:
    from enginewire.vllm_engine.kv_events.listener import CacheListener


class RankCaches:
    """One `CachedBlocks` for each rank of `config`. Lives on the event loop."""

    def __init__(self, config: pb.EngineConfig, medium: str) -> None:
        self._ranks = [
            CachedBlocks(config.kv_cache_block_size, medium) for _ in range(config.data_parallel_size or 1)
        ]
        self._listening: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        """Blocks that requests can find."""
        return sum(map(len, self._ranks))

    def listen(self, listener: CacheListener) -> None:
        """Follow all ranks until `close`."""
        self._listening = [
            asyncio.create_task(listener.run(rank, blocks.take, blocks.clear), name=f"vllm cache {rank}")
            for rank, blocks in enumerate(self._ranks)
        ]

    def sources(self) -> Sequence[pb.KvEventSource]:
        """One for each rank."""
        return [pb.KvEventSource(dp_rank=rank) for rank in range(len(self._ranks))]

    def subscribe(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        """What a rank does; ends with `close`. Raises InvalidRequest, and later SlowConsumer."""
        if dp_rank >= len(self._ranks):
            allowed = f"0..{len(self._ranks) - 1}"
            message = f"dp_rank: no such rank, got {dp_rank}, allowed {allowed}"
            raise InvalidRequest(message, field="dp_rank")
        return self._ranks[dp_rank].log.subscribe(after_sequence)

    def clear(self) -> int:
        """Everything is gone; returns how many blocks that were."""
        return sum(blocks.clear() for blocks in self._ranks)

    async def close(self) -> None:
        """End subscriptions. Idempotent."""
        for blocks in self._ranks:
            blocks.log.close()
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
