"""What the line of statistics says beside the load: the prompts of requests that have ended.

Adds up at the end of each request. Knows nothing about how the load comes about.
"""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.metrics.stats_line import Seen
from enginewire.server.admission.live import Failed, Live
from enginewire.server.admission.observer import Observer


class PromptCounts(Observer):
    """Tokens of prompts since the beginning."""

    def __init__(self) -> None:
        self._num_prompt = 0
        self._num_cached = 0

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """Its prompt counts now, for only now it is known what of it was cached."""
        self._num_prompt += usage.prompt_tokens
        self._num_cached += usage.prompt_tokens_details.cached_tokens

    def seen_with(self, load: pb.Load) -> Seen:
        """One look at the engine."""
        return Seen(
            prompt_tokens=self._num_prompt,
            cached_tokens=self._num_cached,
            generated_tokens=load.tokens_generated,
            running=load.running,
            waiting=load.waiting,
            kv_use=load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0,
        )
