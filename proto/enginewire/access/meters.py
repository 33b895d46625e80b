"""How much each caller uses now and has used in the last minute, held against its limits.

What a request takes it gives back when it ends. Lives on one event loop. Knows nothing about requests beyond
their numbers, and nothing about servers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginewire.access.caller import Party

MINUTE: Final = 60.0
# Where nobody can say when a running request will end.
RETRY_SECONDS: Final = 1.0
# Tenants are named by others: those that use nothing are forgotten beyond this number.
MOST_IDLE: Final = 4096


class OverLimit(Exception):
    """A caller has what it may have. `retry_after` in seconds; None: this request alone is too much."""

    def __init__(self, limit: str, what: str, used: float, allowed: int, retry_after: float | None) -> None:
        super().__init__(f"{limit}: {what}, allowed {allowed}")
        self.limit = limit
        self.used = max(0, math.ceil(used))
        self.allowed = allowed
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Need:
    """What one request takes.

    `tokens` are prompt and output at most, in all choices; a probe costs no tokens.
    """

    requests: int = 1
    prompt_tokens: int = 0
    tokens: int = 0
    is_probe: bool = False


class Bucket:
    """What is left of a minute's allowance; it fills evenly. Below zero it is a debt."""

    __slots__ = ("at", "left", "size")

    def __init__(self, size: int, now: float) -> None:
        self.size, self.left, self.at = size, float(size), now

    def fill(self, size: int, now: float) -> None:
        """Bring it up to date; its size may have been changed by the operator."""
        self.left = min(size, self.left + (now - self.at) * size / MINUTE)
        self.size, self.at = size, now

    def wait_for(self, amount: float) -> float:
        """Seconds until so much is there."""
        return max(0.0, (min(amount, self.size) - self.left) * MINUTE / self.size)


class Usage:
    """What one caller has."""

    __slots__ = ("requests", "rpm", "tokens", "tpm")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.rpm: Bucket | None = None
        self.tpm: Bucket | None = None

    @property
    def is_forgettable(self) -> bool:
        """Nothing runs, and what is left is what a newcomer would have."""
        buckets = [bucket for bucket in (self.rpm, self.tpm) if bucket]
        return not self.requests and all(bucket.left >= bucket.size for bucket in buckets)


class Ticket:
    """What one request has taken. It is given back once, however often `close` is called."""

    __slots__ = ("_need", "_usage")

    def __init__(self, usage: Usage | None = None, need: Need | None = None) -> None:
        self._usage = usage
        self._need = need or Need()

    def close(self, output_tokens: int) -> None:
        """The request has ended with so many tokens of its own."""
        usage, self._usage = self._usage, None
        if usage is None:
            return
        usage.requests -= self._need.requests
        usage.tokens -= self._need.tokens
        if usage.tpm is not None and not self._need.is_probe:
            usage.tpm.left -= output_tokens

    def undo(self) -> None:
        """The request was refused after all: it has taken nothing."""
        usage = self._usage
        self.close(0)
        if usage is not None and usage.rpm is not None:
            usage.rpm.left += self._need.requests
        if usage is not None and usage.tpm is not None and not self._need.is_probe:
            usage.tpm.left += self._need.prompt_tokens


NOTHING: Final = Ticket()


@dataclass(frozen=True, slots=True)
class Rate:
    """One limit of a minute: `reset` is when all of it is there again, in seconds."""

    limit: int
    remaining: int
    reset: float


class Meters:
    """The usage of all callers of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usages: dict[str, Usage] = {}
        self.limits_tokens = False
        """Somebody's tokens are limited by the minute: those of failures have to be counted."""

    def take(self, party: Party, need: Need) -> Ticket:
        """Let one more request of a caller in. Raises OverLimit, then nothing was taken."""
        if not party.key:
            return NOTHING
        usage = self._usage(party)
        self._check(party, need, usage)
        usage.requests += need.requests
        usage.tokens += need.tokens
        if usage.rpm is not None:
            usage.rpm.left -= need.requests
        if usage.tpm is not None and not need.is_probe:
            usage.tpm.left -= need.prompt_tokens
            self.limits_tokens = True
        return Ticket(usage, need)

    def rates(self, party: Party) -> dict[str, Rate]:
        """Where a caller stands: by `requests` and `tokens`, those that are limited by the minute."""
        if not party.key or party.allowance.rpm_limit is party.allowance.tpm_limit is None:
            return {}
        usage = self._usage(party)
        buckets = {"requests": usage.rpm, "tokens": usage.tpm}
        return {
            what: Rate(bucket.size, max(0, math.floor(bucket.left)), bucket.wait_for(bucket.size))
            for what, bucket in buckets.items()
            if bucket
        }

    def requests_of(self, party: Party) -> int:
        """Choices that are running or waiting."""
        usage = self._usages.get(party.key)
        return usage.requests if usage else 0

    def _usage(self, party: Party) -> Usage:
        """Up to date."""
        if (usage := self._usages.get(party.key)) is None:
            if len(self._usages) >= MOST_IDLE:
                self._forget()
            usage = self._usages[party.key] = Usage()
        now, allowance = self._clock(), party.allowance
        usage.rpm = _filled(usage.rpm, allowance.rpm_limit, now)
        usage.tpm = _filled(usage.tpm, allowance.tpm_limit, now)
        return usage

    def _forget(self) -> None:
        now = self._clock()
        for usage in self._usages.values():
            for bucket in (usage.rpm, usage.tpm):
                if bucket:
                    bucket.fill(bucket.size, now)
        self._usages = {key: usage for key, usage in self._usages.items() if not usage.is_forgettable}

    def _check(self, party: Party, need: Need, usage: Usage) -> None:
        allowance = party.allowance
        for limit, what, used, more, allowed in (
            (
                "max_parallel_requests",
                "requests running or waiting",
                usage.requests,
                need.requests,
                allowance.max_parallel_requests,
            ),
            (
                "max_parallel_tokens",
                "tokens of running and waiting requests",
                usage.tokens,
                need.tokens,
                allowance.max_parallel_tokens,
            ),
        ):
            if allowed is not None and used + more > allowed:
                words = f"you have {used} {what}, and this one adds {more}"
                raise OverLimit(limit, words, used, allowed, RETRY_SECONDS if more <= allowed else None)
        self._check_rate("rpm_limit", "requests", usage.rpm, need.requests)
        if not need.is_probe:
            self._check_rate("tpm_limit", "tokens", usage.tpm, need.prompt_tokens)

    def _check_rate(self, limit: str, what: str, bucket: Bucket | None, more: int) -> None:
        if bucket is None or (bucket.left >= more and bucket.left > 0):
            return
        used, retry_after = bucket.size - bucket.left, max(bucket.wait_for(max(more, 1)), 0.001)
        words = f"you have used {math.ceil(used)} {what} of this minute, and this request adds {more}"
        raise OverLimit(limit, words, used, bucket.size, retry_after if more <= bucket.size else None)


def _filled(bucket: Bucket | None, size: int | None, now: float) -> Bucket | None:
    if size is None:
        return None
    if bucket is None:
        return Bucket(size, now)
    bucket.fill(size, now)
    return bucket
