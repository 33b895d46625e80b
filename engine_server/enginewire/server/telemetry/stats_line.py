"""A line of the log every ten seconds in which something happened: what vLLM's says, in its order.

Adds up at the end of each request. Knows nothing about how the load comes about.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from enginewire import v1 as pb
from enginewire.server.admission.live import Failed, Live
from enginewire.server.admission.observer import Observer

log = logging.getLogger(__name__)

SECONDS: Final = 10.0


class StatsLine(Observer):
    """Give `load` to `log_for_ever`; a load is asked for once a line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._num_generated = 0
        self._num_prompt = 0
        self._num_cached = 0

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """Its prompt counts now, for only now it is known what of it was cached."""
        self._num_prompt += usage.prompt_tokens
        self._num_cached += usage.prompt_tokens_details.cached_tokens

    async def log_for_ever(self, load: Callable[[], pb.Load]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(SECONDS)
            if text := self.line(load()):
                log.info(text)

    def line(self, load: pb.Load) -> str:
        """What has happened since the last line; "" for nothing."""
        now, num_prompt, num_cached = self._clock(), self._num_prompt, self._num_cached
        seconds, generated = now - self._since, load.tokens_generated - self._num_generated
        self._since, self._num_generated = now, load.tokens_generated
        self._num_prompt = self._num_cached = 0
        if not (load.running or load.waiting or generated or num_prompt):
            return ""
        kv_use = load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0
        return (
            f"prompts {num_prompt / seconds:.1f} tokens/s, answers {generated / seconds:.1f} tokens/s,"
            f" {load.running} running, {load.waiting} waiting, KV cache {kv_use:.1%},"
            f" prefix cache hits {num_cached / num_prompt if num_prompt else 0.0:.1%}"
        )
