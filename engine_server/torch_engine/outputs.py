"""What the caller gets: engine events as messages of the contract.

Knows sequences and protobuf; nothing about torch, queues or threads.
"""

from __future__ import annotations

from engine_server.torch_engine.logprobs import RowLogprobs
from engine_server.torch_engine.sequence import Finish, Request, Sequence
from enginewire import v1 as pb

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
        output.logprobs.CopyFrom(_columns(logprobs))
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
        output.completion_usage.CopyFrom(usage_of(sequence.request, sequence.request.num_output_tokens))


def usage_of(request: Request, completion_tokens: int) -> pb.CompletionUsage:
    """The usage of a whole request."""
    prompt_tokens = len(request.prompt_token_ids)
    return pb.CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=min(prompt_tokens + completion_tokens, MAX_UINT32),
    )


def _columns(logprobs: RowLogprobs) -> pb.Logprobs:
    return pb.Logprobs(
        token_logprobs=[logprobs.token],
        token_ranks=[logprobs.rank],
        top_n=len(logprobs.top_ids),
        top_token_ids=logprobs.top_ids,
        top_logprobs=logprobs.top,
        selected_logprobs=logprobs.selected,
    )
