"""How quickly tokens follow each other, counted as each of them is passed on.

Holds when a choice had its last token, and the gaps of all choices on their way into a histogram. Knows
nothing about requests or about what tokens say.
"""

from __future__ import annotations

from enginewire.metrics.histogram import Histogram


class InterTokenLatency:
    """Times between two tokens of a choice.

    Choices that get their tokens in the same frames share their gaps, so one look-up is for all of them.
    """

    __slots__ = ("_histogram", "_last_at", "_now", "_times")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._last_at = self._now = 0.0
        self._times = 0

    @property
    def histogram(self) -> Histogram:
        """All of them."""
        self._settle()
        return self._histogram

    def observe(self, last_at: float, now: float, num_tokens: int) -> None:
        """Tokens that came together were made one after the other. One frame's come with the same objects."""
        if last_at is self._last_at and now is self._now and num_tokens == 1:
            self._times += 1
        elif num_tokens == 1:
            self._settle()
            self._last_at, self._now, self._times = last_at, now, 1
        else:
            self._histogram.observe((now - last_at) / num_tokens, num_tokens)

    def _settle(self) -> None:
        if self._times:
            self._histogram.observe(self._now - self._last_at, self._times)
            self._times = 0


class TokenClock:
    """When one choice had its last token. Times of time.monotonic."""

    __slots__ = ("_gaps", "_last_at")

    def __init__(self, gaps: InterTokenLatency) -> None:
        self._gaps = gaps
        # 0 before its first token.
        self._last_at = 0.0

    def take(self, num_tokens: int, now: float) -> bool:
        """Tokens of the choice are passed on, at least one. False for the first ones."""
        last_at, self._last_at = self._last_at, now
        if not last_at:
            return False
        self._gaps.observe(last_at, now, num_tokens)
        return True
