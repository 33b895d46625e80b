"""A line of the log every ten seconds in which something happened: what vLLM's says, in its order.

Engine server and backend both write one. Knows nothing about how the numbers come about.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look: tokens and failures since the beginning, and what is there now.

    `kv_use` is a share, `failed` counts requests; None where that is not known.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_use: float | None = None
    failed: int | None = None


class StatsLine:
    """Give a look to `log_for_ever`; it is asked for once a line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._before = Seen()

    async def log_for_ever(self, log: logging.Logger, look: Callable[[], Seen]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(SECONDS)
            if text := self.line(look()):
                log.info(text)

    def line(self, seen: Seen) -> str:
        """What has happened since the last line; "" for nothing."""
        before, seconds = self._before, self._clock() - self._since
        self._before, self._since = seen, self._clock()
        prompts = seen.prompt_tokens - before.prompt_tokens
        answers = seen.generated_tokens - before.generated_tokens
        failed = (seen.failed or 0) - (before.failed or 0)
        if not (seen.running or seen.waiting or answers or prompts or failed):
            return ""
        hits = (seen.cached_tokens - before.cached_tokens) / prompts if prompts else 0.0
        parts = [
            f"prompts {prompts / seconds:.1f} tokens/s, answers {answers / seconds:.1f} tokens/s",
            f"{seen.running} running, {seen.waiting} waiting",
            "" if seen.kv_use is None else f"KV cache {seen.kv_use:.1%}",
            f"prefix cache hits {hits:.1%}",
            "" if seen.failed is None else f"{failed} failed",
        ]
        return ", ".join(part for part in parts if part)
