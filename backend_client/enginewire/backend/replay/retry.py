"""When a failed request may be sent again, how often and how soon.

Holds the table of reasons, the back-off and the budget of a whole backend. Knows nothing about engines
or streams.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure


class Retry(enum.Enum):
    """What a reason allows."""

    # The same request would fail again, or its caller does not want it any more.
    NEVER = enum.auto()
    # The engine refused: nothing was done. It may say when to come back.
    REFUSED = enum.auto()
    # The engine was lost, perhaps in the middle of an answer: only a continuation may follow that.
    LOST = enum.auto()


RETRIES: Final[Mapping[pb.ErrorReason.ValueType, Retry]] = {
    pb.ERROR_REASON_UNSPECIFIED: Retry.NEVER,
    pb.ERROR_REASON_INVALID_REQUEST: Retry.NEVER,
    pb.ERROR_REASON_CONTEXT_EXCEEDED: Retry.NEVER,
    pb.ERROR_REASON_UNSUPPORTED: Retry.NEVER,
    pb.ERROR_REASON_MODEL_NOT_FOUND: Retry.NEVER,
    pb.ERROR_REASON_DUPLICATE_ID: Retry.NEVER,
    pb.ERROR_REASON_QUEUE_FULL: Retry.REFUSED,
    pb.ERROR_REASON_KV_EXHAUSTED: Retry.NEVER,
    pb.ERROR_REASON_TOO_LARGE: Retry.NEVER,
    pb.ERROR_REASON_ROLE_MISMATCH: Retry.NEVER,
    pb.ERROR_REASON_REVISION_MISMATCH: Retry.NEVER,
    pb.ERROR_REASON_DRAINING: Retry.LOST,
    pb.ERROR_REASON_NOT_STARTED: Retry.REFUSED,
    pb.ERROR_REASON_ENGINE_DEAD: Retry.LOST,
    pb.ERROR_REASON_STUCK: Retry.LOST,
    pb.ERROR_REASON_SLOW_CONSUMER: Retry.NEVER,
    pb.ERROR_REASON_DEADLINE_EXCEEDED: Retry.NEVER,
    pb.ERROR_REASON_AUTH: Retry.NEVER,
    pb.ERROR_REASON_HANDOFF_INVALID: Retry.NEVER,
    pb.ERROR_REASON_INTERNAL: Retry.NEVER,
    pb.ERROR_REASON_PROTOCOL_VIOLATION: Retry.NEVER,
    pb.ERROR_REASON_STREAM_INCOMPLETE: Retry.LOST,
    pb.ERROR_REASON_DECODE_ERROR: Retry.NEVER,
    pb.ERROR_REASON_CANCELLED: Retry.NEVER,
    pb.ERROR_REASON_ADAPTER_EXISTS: Retry.NEVER,
    pb.ERROR_REASON_ADAPTER_LIMIT: Retry.NEVER,
    pb.ERROR_REASON_ADAPTER_IN_USE: Retry.NEVER,
}

# An engine is gone, and the request was in it.
DEATHS: Final = frozenset({pb.ERROR_REASON_ENGINE_DEAD, pb.ERROR_REASON_STUCK})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How hard to try for one request. Times in seconds.

    `recovery` is how long a request waits for an engine to be ready; `max_deaths` engines that died one
    after the other with a request inside make it suspect.
    """

    max_attempts: int = 5
    shortest_backoff: float = 0.05
    longest_backoff: float = 2.0
    recovery: float = 60.0
    max_deaths: int = 2

    def allows(self, failure: Failure, num_attempts: int) -> bool:
        """True when a request that failed like this after so many attempts may be sent again."""
        may_retry = RETRIES.get(failure.reason, Retry.NEVER) is not Retry.NEVER
        # Another engine would have more for the caller than it shall have.
        may_retry = may_retry and not failure.caller_limit
        return may_retry and failure.retryable and num_attempts < self.max_attempts

    def backoff(self, num_attempts: int, retry_after: float | None) -> float:
        """How long to leave an engine alone: not less than it asked for, and not all at the same time."""
        wait = min(self.longest_backoff, self.shortest_backoff * 2.0 ** (num_attempts - 1))
        return (retry_after or 0.0) + wait * random.uniform(0.5, 1.0)


class RetryBudget:
    """A token bucket: when most requests fail, repeating them would only make it worse.

    A retry takes one token, a request that ends well gives `per_success` back, every second `per_second`.
    """

    def __init__(
        self,
        capacity: float = 1000.0,
        per_success: float = 0.1,
        per_second: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._per_success = per_success
        self._per_second = per_second
        self._clock = clock
        self._tokens = capacity
        self._filled_at = clock()

    @property
    def share_left(self) -> float:
        """From 1, when it is full, to 0, when nothing is repeated."""
        since = (self._clock() - self._filled_at) * self._per_second
        return min(self._capacity, self._tokens + since) / self._capacity

    def take(self) -> bool:
        """True when one more retry is affordable."""
        now = self._clock()
        self._fill((now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def succeed(self) -> None:
        """A request ended well."""
        self._fill(self._per_success)

    def _fill(self, tokens: float) -> None:
        self._tokens = min(self._capacity, self._tokens + tokens)
