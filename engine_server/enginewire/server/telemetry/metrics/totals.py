"""Everything requests have done since the server started, added up.

Knows nothing about who counts and who shows it.
"""

from __future__ import annotations

from collections import Counter

from enginewire import v1 as pb
from enginewire.access.caller import Party
from enginewire.metrics.histogram import (
    BETWEEN_TOKENS_SECONDS,
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    TOKENS,
    Histogram,
)
from enginewire.metrics.labels import FINISHED
from enginewire.server.engines.interface import GenerateContext

# vLLM's bounds.
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)


class LiveTimes:
    """When things happened to one live request, on the clock of `time.monotonic`."""

    __slots__ = ("accepted_at", "first_token_at", "last_token_at", "num_prompt_tokens", "num_resumed_tokens")

    def __init__(self, accepted_at: float, num_prompt_tokens: int, num_resumed_tokens: int = 0) -> None:
        self.accepted_at = accepted_at
        self.first_token_at: float | None = None
        # By choice.
        self.last_token_at: dict[int, float] = {}
        self.num_prompt_tokens = num_prompt_tokens
        self.num_resumed_tokens = num_resumed_tokens


class Totals:
    """`finished` counts choices by vLLM's words, `failed` accepted requests, `refused` the others."""

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_SECONDS)
        self.between_tokens = Histogram(BETWEEN_TOKENS_SECONDS)
        self.per_output_token = Histogram(BETWEEN_TOKENS_SECONDS)
        self.whole = Histogram(REQUEST_SECONDS)
        self.queue = Histogram(REQUEST_SECONDS)
        self.inference = Histogram(REQUEST_SECONDS)
        self.prefill = Histogram(REQUEST_SECONDS)
        self.decode = Histogram(REQUEST_SECONDS)
        self.prompt_lengths = Histogram(TOKENS)
        self.answer_lengths = Histogram(TOKENS)
        self.max_tokens = Histogram(TOKENS)
        self.choices = Histogram(CHOICES)
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISHED.values(), 0))
        self.failed: Counter[pb.ErrorReason.ValueType] = Counter()
        self.refused: Counter[pb.ErrorReason.ValueType] = Counter()
        # Refused because a caller had what it may have.
        self.over_limit = 0
        # By the labels of callers that are told apart: requests, and tokens by their kind.
        self.requests_of: Counter[str] = Counter()
        self.tokens_of: Counter[tuple[str, str]] = Counter()
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generated_tokens = 0

    def take_caller(self, party: Party, prompt_tokens: int, generated_tokens: int) -> None:
        """A request of somebody has ended."""
        if party.key:
            self.requests_of[party.label] += 1
            self.tokens_of[party.label, "prompt"] += prompt_tokens
            self.tokens_of[party.label, "generation"] += generated_tokens

    def take_wanted(self, request: pb.PreprocessedRequest) -> None:
        """What a caller asked for."""
        self.choices.observe(max(1, request.sampling_options.n))
        if request.stop_conditions.HasField("max_tokens"):
            self.max_tokens.observe(request.stop_conditions.max_tokens)

    def take_first_token(self, times: LiveTimes, now: float) -> None:
        """A request produced something."""
        times.first_token_at = now
        self.first_token.observe(now - times.accepted_at)
        self.prompt_tokens += times.num_prompt_tokens

    def take_end(
        self, context: GenerateContext, times: LiveTimes, usage: pb.CompletionUsage, now: float
    ) -> None:
        """A request that ended by itself."""
        num_tokens = max(usage.completion_tokens - times.num_resumed_tokens, 0)
        self.whole.observe(now - times.accepted_at)
        self.prompt_lengths.observe(times.num_prompt_tokens)
        self.answer_lengths.observe(num_tokens)
        if context.running_since is not None:
            # A thread may begin with a request before the loop has noted that it is accepted.
            self.queue.observe(max(context.running_since - times.accepted_at, 0.0))
            self.inference.observe(now - context.running_since)
        first_token_at = times.first_token_at
        if first_token_at is None:  # only its prompt was wanted
            self.prompt_tokens += times.num_prompt_tokens
            return
        if context.running_since is not None:
            self.prefill.observe(first_token_at - context.running_since)
        self.decode.observe(now - first_token_at)
        if num_tokens > 1:
            self.per_output_token.observe((now - first_token_at) / (num_tokens - 1))
