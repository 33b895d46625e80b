"""What the steps have to say to callers, in the words of the contract, until somebody takes it.

Whatever a step tells becomes a message here and nowhere else. Knows nothing about torch, queues or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError
from enginewire.torch_engine.requests.candidates import Candidate
from enginewire.torch_engine.requests.scores import PromptScores, RowLogprobs
from enginewire.torch_engine.requests.sequence import Finish, Request, Sequence

FINISH_REASONS = {
    None: pb.FINISH_REASON_CANCELLED,
    Finish.EOS: pb.FINISH_REASON_EOS,
    Finish.STOP: pb.FINISH_REASON_STOP,
    Finish.LENGTH: pb.FINISH_REASON_LENGTH,
}
OUTPUT_TOKENS = 256
"""Tokens per output, so that none is too large a message, whatever is reported of each token."""


@dataclass(slots=True)
class CoreOutputs(StepOutputs):
    """What a step produced, the vectors of inputs, and the KV of requests that hand it over."""

    vectors: list[tuple[GenerateContext, list[float]]] = field(default_factory=list)
    handed_over: list[tuple[Request, memoryview]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to deliver to callers."""
        return not (self.contexts or self.outputs or self.failures or self.vectors)


class Outbox:
    """Plain tokens in columns, outputs with more than that, and other ends."""

    def __init__(self) -> None:
        self._outputs = CoreOutputs(step=0)

    @property
    def has_news(self) -> bool:
        """True when somebody waits for an end."""
        return bool(self._outputs.outputs or self._outputs.failures)

    def take(self, step: int) -> CoreOutputs:
        """What came in since the last call, as that of `step`."""
        outputs, self._outputs = self._outputs, CoreOutputs(step=step)
        outputs.step = step
        return outputs

    def token(self, sequence: Sequence, logprobs: RowLogprobs | None) -> None:
        """The last token of a sequence that goes on, with its log-probabilities if they were asked for."""
        request = sequence.request
        if logprobs is not None or (request.prompt_scores is not None and sequence.index == 0):
            self._add(request, [_output_of(sequence, 1, logprobs)])
            return
        out = self._outputs
        out.contexts.append(request.context)
        out.indexes.append(sequence.index)
        out.positions.append(sequence.num_output_tokens - 1)
        out.token_ids.append(sequence.token_ids[-1])

    def end(
        self,
        sequence: Sequence,
        finish: Finish | None,
        num_tokens: int = 0,
        logprobs: RowLogprobs | None = None,
    ) -> None:
        """The last `num_tokens` tokens of a released sequence, and why it ended; None: cancelled."""
        output, request = _output_of(sequence, num_tokens, logprobs), sequence.request
        _finish(output, finish, sequence.token_ids)
        if not request.unfinished:
            output.completion_usage.CopyFrom(_usage_of(request, request.output_token_ids))
        self._add(request, [output])

    def choices(self, request: Request, chosen: Seq[Candidate]) -> None:
        """All choices of a request at once, the best first."""
        made = [output for index, each in enumerate(chosen) for output in _outputs_of(each, index)]
        made[-1].completion_usage.CopyFrom(_usage_of(request, [each.token_ids for each in chosen]))
        self._add(request, made)

    def vector(self, context: GenerateContext, vector: list[float]) -> None:
        """The vector of an input."""
        self._outputs.vectors.append((context, vector))

    def hand_over(self, request: Request, payload: memoryview) -> None:
        """The KV of a request that ends with its prompt; whoever writes it down has the last word."""
        self._outputs.handed_over.append((request, payload))

    def failure(self, context: GenerateContext, error: EngineError) -> None:
        """A request has failed."""
        self._outputs.failures.append((context, error))

    def _add(self, request: Request, outputs: list[pb.LLMEngineOutput]) -> None:
        _add_prompt_logprobs(request, outputs[0])
        self._outputs.outputs += [(request.context, output) for output in outputs]


def handed_over_output(request: Request, handoff: pb.PrefillHandoff | None) -> pb.LLMEngineOutput:
    """The one output of a request that hands its KV over; None: it was cancelled in the last moment."""
    return pb.LLMEngineOutput(
        finish_reason=pb.FINISH_REASON_LENGTH if handoff else pb.FINISH_REASON_CANCELLED,
        completion_usage=_usage_of(request, []),
        prefill_handoff=handoff,
    )


def _output_of(sequence: Sequence, num_tokens: int, logprobs: RowLogprobs | None) -> pb.LLMEngineOutput:
    """The last `num_tokens` tokens of a sequence."""
    begin = len(sequence.token_ids) - num_tokens
    output = pb.LLMEngineOutput(
        token_ids=sequence.token_ids[begin:],
        first_output_position=sequence.num_output_tokens - num_tokens,
        index=sequence.index,
    )
    if logprobs is not None:
        output.cum_log_probs = sequence.cum_log_prob
        output.logprobs.CopyFrom(_logprobs_of([logprobs]))
    return output


def _outputs_of(candidate: Candidate, index: int) -> Iterator[pb.LLMEngineOutput]:
    """A whole choice."""
    token_ids, rows = candidate.token_ids, candidate.logprobs
    sums = list(accumulate(row.token for row in rows))
    for begin in range(0, max(len(token_ids), 1), OUTPUT_TOKENS):
        part = token_ids[begin : begin + OUTPUT_TOKENS]
        output = pb.LLMEngineOutput(token_ids=part, first_output_position=begin, index=index)
        end = begin + len(part)
        if rows:
            output.cum_log_probs = sums[end - 1]
            output.logprobs.CopyFrom(_logprobs_of(rows[begin:end]))
        if end == len(token_ids):
            _finish(output, candidate.finish, token_ids)
        yield output


def _finish(output: pb.LLMEngineOutput, finish: Finish | None, token_ids: Seq[int]) -> None:
    """Make an output the last one of a choice."""
    output.finish_reason = FINISH_REASONS[finish]
    if finish is Finish.STOP:
        output.stop_match.token_id = token_ids[-1]


def _add_prompt_logprobs(request: Request, first: pb.LLMEngineOutput) -> None:
    """Put those of the prompt on the first output of choice 0, unless it was cancelled without any."""
    scores = request.prompt_scores
    if scores is not None and first.index == 0 and scores.is_complete:
        first.prompt_logprobs.logprobs.CopyFrom(_prompt_logprobs_of(scores))
        request.prompt_scores = None


def _prompt_logprobs_of(scores: PromptScores) -> pb.Logprobs:
    return pb.Logprobs(
        token_logprobs=scores.tokens,
        token_ranks=scores.ranks,
        top_n=scores.top_n,
        top_token_ids=scores.top_ids,
        top_logprobs=scores.top,
    )


def _logprobs_of(rows: Seq[RowLogprobs]) -> pb.Logprobs:
    """Consecutive tokens of one choice in columns."""
    return pb.Logprobs(
        token_logprobs=[row.token for row in rows],
        token_ranks=[row.rank for row in rows if row.rank],
        top_n=len(rows[0].top_ids),
        top_token_ids=[token_id for row in rows for token_id in row.top_ids],
        top_logprobs=[value for row in rows for value in row.top],
        selected_logprobs=[value for row in rows for value in row.selected],
    )


def _usage_of(request: Request, choices: Seq[Seq[int]]) -> pb.CompletionUsage:
    """The usage of a whole request; `choices` are the output tokens of each one that is returned."""
    prompt_tokens, completion_tokens = len(request.prompt_token_ids), sum(map(len, choices))
    usage = pb.CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=request.num_cached_tokens or 0),
    )
    thinking = request.thinking
    if thinking:
        counts = (thinking.tokens.count_inside(choice, thinking.starts_open) for choice in choices)
        usage.completion_tokens_details.reasoning_tokens = sum(counts)
    drafters = [each.drafter for each in request.sequences if each.drafter]
    if drafters and not request.best_of:  # of candidates that are not returned nobody wants to know
        num_accepted = sum(drafter.num_accepted for drafter in drafters)
        num_drafted = sum(drafter.num_drafted for drafter in drafters)
        usage.completion_tokens_details.accepted_prediction_tokens = num_accepted
        usage.completion_tokens_details.rejected_prediction_tokens = num_drafted - num_accepted
    return usage
