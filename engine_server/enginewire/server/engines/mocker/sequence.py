"""One request inside the mocker: its choices, when they end, and what they report.

Holds `Sequence` (one choice) and `Request`. Knows nothing about steps, queues or time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.model import Echo, Sampler, log_probability

CHUNK = 256
"""Tokens a sequence knows ahead of its position."""

MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a choice ends. Counts are output tokens; nothing but `max_tokens` applies below `min_tokens`."""

    max_tokens: int
    min_tokens: int
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]

    def reason(self, count: int, last: int) -> pb.FinishReason.ValueType:
        """Why a choice of `count` tokens ends with `last`; UNSPECIFIED when it goes on."""
        if count >= self.min_tokens and last in self.eos_token_ids:
            return pb.FINISH_REASON_EOS
        if count >= self.min_tokens and last in self.stop_token_ids:
            return pb.FINISH_REASON_STOP
        return pb.FINISH_REASON_LENGTH if count >= self.max_tokens else pb.FINISH_REASON_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class WantedLogprobs:
    """Log-probabilities to report: `top_n` alternatives and the `selected` ids."""

    top_n: int
    selected: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Request:
    """A request. `completion_tokens` counts choices that have ended.

    A request with a `prompt_digest` ends when its prompt is computed, with a hand-off. Another mocker has
    computed `num_handed_over` tokens of the prompt, and said `prompt_tokens_details` about it. `events` come
    before its first token.
    """

    context: GenerateContext
    prompt_tokens: int
    stop: StopRules
    echo: Echo
    logprobs: WantedLogprobs | None
    blocks_per_sequence: int
    sequences: list[Sequence] = field(default_factory=list)
    completion_tokens: int = 0
    is_running: bool = False
    prompt_digest: str = ""
    num_handed_over: int = 0
    prompt_tokens_details: pb.PromptTokensDetails | None = None
    events: list[pb.EngineEvent] = field(default_factory=list)

    def take_events(self) -> list[tuple[GenerateContext, pb.EngineEvent]]:
        """Its events, once."""
        events, self.events = self.events, []
        return [(self.context, event) for event in events]

    def begin(self, now: float) -> None:
        """It runs."""
        self.is_running = True
        self.context.running_since = now

    def usage(self) -> pb.CompletionUsage:
        """Usage once every choice has ended."""
        return pb.CompletionUsage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=min(self.prompt_tokens + self.completion_tokens, MAX_UINT32),
            prompt_tokens_details=self.prompt_tokens_details,
        )


class Sequence:
    """One choice. Positions from `position` up to `pause_at` are bare: a token id and nothing else."""

    __slots__ = (
        "ahead", "ahead_begin", "context", "cum_log_prob", "ended_before", "finish_at", "index",
        "is_finished", "num_computed_tokens", "num_prefill_tokens", "pause_at", "position", "ready_at",
        "request", "sampler",
    )  # fmt: skip

    def __init__(self, request: Request, index: int, sampler: Sampler, resumed: pb.ResumedChoice) -> None:
        self.request = request
        self.context = request.context
        self.index = index
        self.sampler = sampler
        self.position = len(resumed.generated_token_ids)
        self.cum_log_prob = resumed.cum_log_probs
        self.num_prefill_tokens = request.prompt_tokens + self.position
        self.num_computed_tokens = request.num_handed_over
        self.ready_at = 0.0
        self.is_finished = False
        self.ended_before = _resumed_end(request.stop, resumed)
        self.look_ahead()

    def look_ahead(self) -> None:
        """Learn the next tokens, and at which of them the choice ends (-1: not among them)."""
        stop, begin = self.request.stop, self.position
        self.ahead = self.sampler.run(begin, min(CHUNK, stop.max_tokens - begin))
        self.ahead_begin = begin
        self.finish_at = self._first_end(stop, begin)
        is_bare = self.request.logprobs is None and self.ended_before is None
        end = begin + len(self.ahead) if is_bare else begin
        self.pause_at = end if self.finish_at < 0 else min(end, self.finish_at)

    def take(self) -> int:
        """The next token."""
        token_id = self.ahead[self.position - self.ahead_begin]
        self.position += 1
        return token_id

    @property
    def is_prefilled(self) -> bool:
        """True when the whole prompt was computed."""
        return self.num_computed_tokens == self.num_prefill_tokens

    @property
    def is_out_of_tokens(self) -> bool:
        """True when `look_ahead` is due."""
        return self.position == self.ahead_begin + len(self.ahead)

    def output(self) -> pb.LLMEngineOutput:
        """The next token as a message, with log-probabilities and the finish if they are due."""
        if self.ended_before is not None:
            return self._terminal_of_resumed(self.ended_before)
        position, token_id = self.position, self.take()
        output = pb.LLMEngineOutput(token_ids=[token_id], first_output_position=position, index=self.index)
        if self.request.logprobs is not None:
            self._add_logprobs(output, self.request.logprobs, position, token_id)
        if position == self.finish_at:
            self.finish(output, self.request.stop.reason(position + 1, token_id))
            if output.finish_reason == pb.FINISH_REASON_STOP:
                output.stop_match.token_id = token_id
        return output

    def _terminal_of_resumed(self, last: int) -> pb.LLMEngineOutput:
        output = self.empty_output()
        self.finish(output, self.request.stop.reason(self.position, last))
        if output.finish_reason == pb.FINISH_REASON_STOP:
            output.stop_match.token_id = last
        return output

    def empty_output(self) -> pb.LLMEngineOutput:
        """An output without a token, to be finished."""
        return pb.LLMEngineOutput(first_output_position=self.position, index=self.index)

    def finish(self, output: pb.LLMEngineOutput, reason: pb.FinishReason.ValueType) -> None:
        """Make `output` the terminal of this choice; the last choice adds the usage."""
        request = self.request
        self.is_finished = True
        request.sequences.remove(self)
        request.completion_tokens += self.position
        output.finish_reason = reason
        if not request.sequences:
            output.completion_usage.CopyFrom(request.usage())

    def _first_end(self, stop: StopRules, begin: int) -> int:
        ends = stop.eos_token_ids | stop.stop_token_ids
        if not ends.isdisjoint(self.ahead):
            for position, token_id in enumerate(self.ahead, begin):
                if token_id in ends and stop.reason(position + 1, token_id):
                    return position
        return stop.max_tokens - 1 if begin + len(self.ahead) == stop.max_tokens else -1

    def _add_logprobs(
        self, output: pb.LLMEngineOutput, wanted: WantedLogprobs, position: int, token_id: int
    ) -> None:
        echo = self.request.echo
        rank = echo.rank(position, token_id)
        self.cum_log_prob += log_probability(rank)
        output.cum_log_probs = self.cum_log_prob
        output.logprobs.token_logprobs.append(log_probability(rank))
        output.logprobs.token_ranks.append(rank)
        output.logprobs.top_n = wanted.top_n
        output.logprobs.top_token_ids.extend(echo.top(position, wanted.top_n))
        output.logprobs.top_logprobs.extend(log_probability(r) for r in range(1, wanted.top_n + 1))
        output.logprobs.selected_logprobs.extend(
            log_probability(echo.rank(position, selected)) for selected in wanted.selected
        )


def _resumed_end(stop: StopRules, resumed: pb.ResumedChoice) -> int | None:
    """The last token of a choice whose tokens were all delivered, but not its terminal."""
    generated = resumed.generated_token_ids
    return generated[-1] if generated and stop.reason(len(generated), generated[-1]) else None
