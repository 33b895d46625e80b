"""From the backend's outputs to SMG's responses.

Sans-IO. SMG reads the text of a stream from the chunks alone and that of a whole answer from `complete`
alone, so both get what they need. It detokenizes by itself: what is sent are token ids, of which the
backend has cut everything behind a stop string. Knows nothing about requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.finish_reason import openai_finish_reason

# JSON has no infinity; the contract's "practically never" is -1e30.
LEAST_LOGPROB: Final = -9999.0
ABORTED: Final = "abort"


@dataclass(slots=True)
class Choice:
    """Everything of one choice so far."""

    output_ids: list[int] = field(default_factory=list)
    logprobs: vllm.OutputLogProbs = field(default_factory=vllm.OutputLogProbs)


class Answer:
    """Outputs in, responses out."""

    def __init__(self, num_prompt_tokens: int, *, is_stream: bool) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._is_stream = is_stream
        self._choices: dict[int, Choice] = {}

    def responses(self, output: BackendOutput) -> Iterator[vllm.GenerateResponse]:
        """What one output makes: a chunk of a stream, and `complete` at the end of the choice."""
        choice = self._choices.setdefault(output.index, Choice())
        choice.output_ids.extend(output.token_ids)
        logprobs = logprobs_of(output)
        if self._is_stream and output.token_ids:
            yield vllm.GenerateResponse(chunk=self._chunk(output, logprobs))
        elif logprobs is not None:
            choice.logprobs.MergeFrom(logprobs)
        if output.is_terminal:
            yield vllm.GenerateResponse(complete=self._complete(output, choice))

    def _chunk(self, output: BackendOutput, logprobs: vllm.OutputLogProbs | None) -> vllm.GenerateStreamChunk:
        """SMG adds up `completion_tokens`."""
        return vllm.GenerateStreamChunk(
            index=output.index,
            token_ids=output.token_ids,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=len(output.token_ids),
            output_logprobs=logprobs,
        )

    def _complete(self, output: BackendOutput, choice: Choice) -> vllm.GenerateComplete:
        usage = output.completion_usage
        complete = vllm.GenerateComplete(
            index=output.index,
            output_ids=choice.output_ids,
            finish_reason=openai_finish_reason(output.finish_reason) or ABORTED,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=len(choice.output_ids),
            cached_tokens=usage.prompt_tokens_details.cached_tokens if usage is not None else 0,
            output_logprobs=choice.logprobs if choice.logprobs.token_ids else None,
        )
        if isinstance(output.stop_reason, str):
            complete.matched_stop_str = output.stop_reason
        elif output.stop_reason is not None:
            complete.matched_token_id = output.stop_reason
        return complete


def logprobs_of(output: BackendOutput) -> vllm.OutputLogProbs | None:
    """The rows of an output; None when none were asked for."""
    if output.logprobs is None:
        return None
    return vllm.OutputLogProbs(
        token_ids=output.token_ids,
        token_logprobs=[max(logprob, LEAST_LOGPROB) for logprob in output.log_probs],
        top_logprobs=[
            vllm.TopLogProbs(
                token_ids=[token_id for token_id, _ in row],
                values=[max(logprob, LEAST_LOGPROB) for _, logprob in row],
            )
            for row in output.top_logprobs
        ],
    )
