"""What a backend has done since it began, as counts and latencies. Knows nothing about requests."""

from __future__ import annotations

from collections import Counter

from enginewire import v1 as pb
from enginewire.backend.activity.inter_token_latency import InterTokenLatency
from enginewire.backend.decoding.engine_check import FINISH_REASON, TEXT
from enginewire.metrics.histogram import (
    BETWEEN_TOKENS_SECONDS,
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    TOKENS,
    Histogram,
)
from enginewire.metrics.labels import FINISHED


class Totals:
    """Everything since the start of this process. `finished` counts choices, `failed` requests, and
    `ended_tokens` the output of requests that have ended.
    """

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_SECONDS)
        self.gaps = InterTokenLatency(Histogram(BETWEEN_TOKENS_SECONDS))
        self.whole = Histogram(REQUEST_SECONDS)
        self.prompt_lengths = Histogram(TOKENS)
        self.answer_lengths = Histogram(TOKENS)
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISHED.values(), 0))
        self.failed: Counter[pb.ErrorReason.ValueType] = Counter()
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.ended_tokens = 0
        self.over_limit = 0
        self.retries = 0
        self.continuations = 0
        self.decode_errors = 0
        # Requests by what their engine said of its tokens that was not so.
        self.engine_differences: Counter[str] = Counter({TEXT: 0, FINISH_REASON: 0})
        self.stopped_here = 0
        self.detokenize_seconds = 0.0

    @property
    def between_tokens(self) -> Histogram:
        """Seconds from a token of a choice to its next one."""
        return self.gaps.histogram
