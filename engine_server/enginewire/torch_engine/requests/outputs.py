"""What the caller gets: engine events as messages of the contract.

Knows sequences and protobuf; nothing about torch, queues or threads.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from enginewire import v1 as pb
from enginewire.torch_engine.requests.scores import PromptScores, RowLogprobs
from enginewire.torch_engine.requests.sequence import Finish, Request, Sequence

FINISH_REASONS = {
    Finish.EOS: pb.FINISH_REASON_EOS,
    Finish.STOP: pb.FINISH_REASON_STOP,
    Finish.LENGTH: pb.FINISH_REASON_LENGTH,
}
MAX_UINT32 = 2**32 - 1


def token_output(sequence: Sequence, logprobs: RowLogprobs | None) -> pb.LLMEngineOutput:
    """The last token of a sequence, with its log-probabilities if they were asked for."""
    output = pb.LLMEngineOutput(
        token_ids=sequence.token_ids[-1:],
        first_output_position=sequence.num_output_tokens - 1,
        index=sequence.index,
    )
    if logprobs is not None:
        output.cum_log_probs = sequence.cum_log_prob
        output.logprobs.CopyFrom(logprob_rows([logprobs]))
    return output


def no_tokens(sequence: Sequence) -> pb.LLMEngineOutput:
    """An output without tokens, to be made a terminal."""
    position = sequence.num_output_tokens
    return pb.LLMEngineOutput(first_output_position=position, index=sequence.index)


def make_terminal(output: pb.LLMEngineOutput, sequence: Sequence, finish: Finish | None) -> None:
    """Add why the choice ended (None: cancelled), and the usage if it was the last one to end.

    The sequence is released already.
    """
    output.finish_reason = FINISH_REASONS[finish] if finish else pb.FINISH_REASON_CANCELLED
    if finish is Finish.STOP:
        output.stop_match.token_id = sequence.token_ids[-1]
    if not sequence.request.unfinished:
        output.completion_usage.CopyFrom(usage_of(sequence.request, sequence.request.output_token_ids))


def handed_over_output(request: Request, handoff: pb.PrefillHandoff | None) -> pb.LLMEngineOutput:
    """The one output of a request that hands its KV over; None: it was cancelled in the last moment."""
    return pb.LLMEngineOutput(
        finish_reason=pb.FINISH_REASON_LENGTH if handoff else pb.FINISH_REASON_CANCELLED,
        completion_usage=usage_of(request, []),
        prefill_handoff=handoff,
    )


def add_prompt_logprobs(output: pb.LLMEngineOutput, scores: PromptScores) -> None:
    """Put the log-probabilities of the whole prompt on an output."""
    output.prompt_logprobs.logprobs.CopyFrom(
        pb.Logprobs(
            token_logprobs=scores.tokens,
            token_ranks=scores.ranks,
            top_n=scores.top_n,
            top_token_ids=scores.top_ids,
            top_logprobs=scores.top,
        )
    )


def usage_of(request: Request, choices: Seq[Seq[int]]) -> pb.CompletionUsage:
    """The usage of a whole request; `choices` are the output tokens of each one that is returned."""
    prompt_tokens, completion_tokens = len(request.prompt_token_ids), sum(map(len, choices))
    usage = pb.CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=min(prompt_tokens + completion_tokens, MAX_UINT32),
        prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=request.num_cached_tokens or 0),
    )
    thinking = request.thinking
    if thinking:
        counts = (thinking.tokens.count_inside(choice, thinking.starts_open) for choice in choices)
        usage.completion_tokens_details.reasoning_tokens = sum(counts)
    return usage


def logprob_rows(rows: Seq[RowLogprobs]) -> pb.Logprobs:
    """Consecutive tokens of one choice in columns."""
    return pb.Logprobs(
        token_logprobs=[row.token for row in rows],
        token_ranks=[row.rank for row in rows if row.rank],
        top_n=len(rows[0].top_ids),
        top_token_ids=[token_id for row in rows for token_id in row.top_ids],
        top_logprobs=[value for row in rows for value in row.top],
        selected_logprobs=[value for row in rows for value in row.selected],
    )
