"""Whether one more request may wait: the limits of the queue, and how long it is.

Knows nothing about requests beyond the places they take.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from enginewire.access.meters import OverLimit
from enginewire.server.admission.live import Live
from enginewire.server.engines.interface import LLMEngine
from enginewire.server.failures import QueueFull

CALLER_LIMIT: Final = "caller_limit"
"""Key in `metadata` of a refusal that names which limit of the caller it is."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait beyond what runs: requests, and prompt tokens."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for `live` requests, in the order in which they came, and one more."""

    limits: QueueLimits
    max_num_seqs: int
    live: Collection[Live]

    def check(self, engine: LLMEngine, prompt_tokens: int) -> None:
        """Raise QueueFull unless a request with such a prompt has a place, or may wait for one."""
        num_waiting, has_place = self._queue()
        if has_place:
            return
        if num_waiting >= self.limits.requests:
            raise queue_full("requests", num_waiting, self.limits.requests)
        waiting_tokens = engine.load().waiting_tokens
        if waiting_tokens + prompt_tokens > self.limits.tokens:
            raise queue_full("tokens", waiting_tokens, self.limits.tokens)

    def _queue(self) -> tuple[int, bool]:
        """How many live requests have to wait, and whether there is a place for one more.

        A request runs as soon as there is a place for one of its choices.
        """
        places = self.max_num_seqs
        for num_running, live in enumerate(self.live):
            if places <= 0:
                return len(self.live) - num_running, False
            places -= live.open_choices + live.hidden_choices
        return 0, places > 0


def queue_full(what: str, depth: int, limit: int) -> QueueFull:
    """The refusal of a request for which there is no room."""
    return QueueFull(
        f"the queue is full: {depth} {what} waiting, allowed {limit}",
        retry_after=1.0,
        metadata={"queue_depth": str(depth), "limit": str(limit)},
    )


def over_limit(over: OverLimit) -> QueueFull:
    """The refusal of a caller that has what it may have."""
    failure = QueueFull(
        str(over),
        retry_after=over.retry_after,
        metadata={CALLER_LIMIT: over.limit, "queue_depth": str(over.used), "limit": str(over.allowed)},
    )
    failure.retryable = over.retry_after is not None
    return failure
