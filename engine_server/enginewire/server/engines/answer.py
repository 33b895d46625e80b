"""What one request has been answered so far, and its next output: positions, stops, limits, usage.

An engine that streams per request chooses tokens; what the contract says about them is here. Knows nothing
about how tokens are chosen, and evaluates no text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext

MAX_UINT32 = 2**32 - 1


class Answer:
    """The choices of one request. Give it the tokens; yield what it makes of them until `is_finished`."""

    def __init__(
        self, request: pb.PreprocessedRequest, context: GenerateContext, config: pb.EngineConfig
    ) -> None:
        """`config` is what the engine said at start."""
        self._context = context
        self._stop = request.stop_conditions
        self._num_prompt = len(request.token_ids)
        self._room = room_for(request, config)
        self._eos, self._stops = ending_ids(request, config)
        self._counts = dict.fromkeys(range(max(1, request.sampling_options.n)), 0)
        self._open = set(self._counts)
        for choice in request.resume.choices:
            self._counts[choice.index] = len(choice.generated_token_ids)
            if choice.finished:
                self._open.discard(choice.index)
        context.running_since = context.running_since or time.monotonic()

    @property
    def is_finished(self) -> bool:
        """True when every choice had its terminal output."""
        return not self._open

    @property
    def open_choices(self) -> tuple[int, ...]:
        """Those that had no terminal output yet."""
        return tuple(sorted(self._open))

    def token(self, token_id: int, index: int = 0) -> pb.LLMEngineOutput:
        """One more token of a choice. The output is terminal when it is the last one.

        That is when it is one of the request's stop or end-of-sequence ids, when there is no room for another
        one, and when the request was cancelled: then the token is left out.
        """
        if self._context.is_cancelled:
            return self.finish(pb.FINISH_REASON_CANCELLED, index)
        output = self._output([token_id], index)
        self._end_behind(output, token_id)
        return output

    def go_on(self, token_id: int, index: int) -> pb.LLMEngineOutput:
        """An output without a token behind this one, which was handed in: terminal if it ends the choice."""
        output = self._output((), index)
        self._end_behind(output, token_id)
        return output

    def finish(
        self, reason: pb.FinishReason.ValueType, index: int = 0, token_ids: Sequence[int] = ()
    ) -> pb.LLMEngineOutput:
        """The terminal output of a choice that ends for a reason of the engine's own."""
        output = self._output(token_ids, index)
        self._end(output, reason)
        return output

    def _output(self, token_ids: Sequence[int], index: int) -> pb.LLMEngineOutput:
        position = self._counts[index]
        self._counts[index] += len(token_ids)
        return pb.LLMEngineOutput(token_ids=token_ids, first_output_position=position, index=index)

    def _end_behind(self, output: pb.LLMEngineOutput, token_id: int) -> None:
        """Make the output terminal if this token, the last one of its choice so far, ends it."""
        count = self._counts[output.index]
        if count >= self._stop.min_tokens and token_id in self._eos:
            self._end(output, pb.FINISH_REASON_EOS)
        elif count >= self._stop.min_tokens and token_id in self._stops:
            self._end(output, pb.FINISH_REASON_STOP)
            output.stop_match.token_id = token_id
        elif count >= self._room:
            self._end(output, pb.FINISH_REASON_LENGTH)

    def _end(self, output: pb.LLMEngineOutput, reason: pb.FinishReason.ValueType) -> None:
        self._open.remove(output.index)
        output.finish_reason = reason
        if self.is_finished:
            output.completion_usage.CopyFrom(usage(self._num_prompt, sum(self._counts.values())))


def ended_before(request: pb.PreprocessedRequest, config: pb.EngineConfig) -> list[pb.LLMEngineOutput]:
    """The terminal outputs of choices that have had their last token already, from another engine."""
    if not request.resume.choices:
        return []
    answer = Answer(request, GenerateContext(""), config)
    outputs = [
        answer.go_on(choice.generated_token_ids[-1], choice.index)
        for choice in request.resume.choices
        if choice.generated_token_ids and not choice.finished
    ]
    return [output for output in outputs if output.finish_reason]


def usage(prompt_tokens: int, completion_tokens: int) -> pb.CompletionUsage:
    """The usage of a whole request; its total is held at the largest number there is."""
    return pb.CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=min(prompt_tokens + completion_tokens, MAX_UINT32),
    )


def room_for(request: pb.PreprocessedRequest, config: pb.EngineConfig) -> int:
    """Most output tokens of a choice."""
    stop = request.stop_conditions
    wanted = stop.max_tokens if stop.HasField("max_tokens") else 1 if request.is_probe else MAX_UINT32
    if not config.HasField("context_length"):
        return wanted
    return min(wanted, config.context_length - len(request.token_ids))


def ending_ids(
    request: pb.PreprocessedRequest, config: pb.EngineConfig
) -> tuple[frozenset[int], frozenset[int]]:
    """Ids that end a choice with EOS, and others that end it with STOP; what is in both is hidden."""
    stop = request.stop_conditions
    eos = {*(request.eos_token_ids or config.eos_token_ids), *stop.stop_token_ids_hidden}
    eos = set() if stop.ignore_eos else eos
    return frozenset(eos), frozenset({*stop.stop_token_ids, *stop.stop_token_ids_visible} - eos)


def with_defaults(given: pb.SamplingOptions, default: pb.SamplingDefaults) -> pb.SamplingOptions:
    """A copy of the options with the engine's own for what was left out."""
    filled = pb.SamplingOptions(
        temperature=default.temperature,
        top_p=default.top_p,
        top_k=default.top_k,
        min_p=default.min_p,
        repetition_penalty=default.repetition_penalty,
    )
    filled.MergeFrom(given)
    return filled
