"""What one request has produced so far, choice by choice, and what its caller is told of it.

Knows the contract's outputs, and nothing about vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.server.engines.answer import ending_ids, usage
from enginewire.server.engines.interface import GenerateContext
from enginewire.vllm_engine.answers.lists import Lists


@dataclass(eq=False, slots=True)
class Choice:
    """One choice, or one input that is embedded; a request of its own for vLLM, which calls it `name`."""

    answer: Answer
    index: int
    name: str
    num_tokens: int = 0
    cum_log_prob: float = 0.0
    is_finished: bool = False
    vector: Sequence[float] = ()
    listed: list[int] = field(default_factory=list)
    """Its tokens, where the request has lists."""

    def output(self, token_ids: Sequence[int]) -> pb.LLMEngineOutput:
        """The next tokens of the choice, counted from now on."""
        output = pb.LLMEngineOutput(
            token_ids=token_ids, first_output_position=self.num_tokens, index=self.index
        )
        self.num_tokens += len(token_ids)
        return output

    def keeps(self, lists: Lists, token_ids: Sequence[int]) -> bool:
        """Whether the lists of the request let its next tokens be these, which are noted."""
        for token_id in token_ids:
            if lists.forbid(self.listed, token_id):
                return False
            self.listed.append(token_id)
        return True

    def end(self, output: pb.LLMEngineOutput, reason: pb.FinishReason.ValueType, last: int = 0) -> None:
        """Make `output` the terminal one. `last` is the stop id of the caller, with STOP."""
        self.is_finished = True
        output.finish_reason = reason
        if reason == pb.FINISH_REASON_STOP:
            output.stop_match.token_id = last
        if not self.answer.unfinished:
            output.completion_usage.CopyFrom(self.answer.usage())


def endings_of(
    request: pb.PreprocessedRequest, config: pb.EngineConfig
) -> tuple[frozenset[int], frozenset[int]]:
    """Ids that end a choice with EOS, and others that end it with STOP.

    A grammar ends with an end of sequence, ignored or not: when it is complete there may be nothing else.
    """
    end_of_sequence, stops = ending_ids(request, config)
    if is_guided(request) and request.stop_conditions.ignore_eos:
        heeding = pb.PreprocessedRequest()
        heeding.CopyFrom(request)
        heeding.stop_conditions.ignore_eos = False
        end_of_sequence = ending_ids(heeding, config)[0] - stops
    return end_of_sequence, stops


def is_guided(request: pb.PreprocessedRequest) -> bool:
    """The output follows a grammar."""
    return request.sampling_options.HasField("guided_decoding")


def has_only_endings(request: pb.PreprocessedRequest, endings: frozenset[int]) -> bool:
    """Whatever may be chosen would end the choice, before it may end.

    vLLM would bar all of it below min_tokens, and choose at random. Instead these ids mean nothing to it, and
    the choice ends by its length, at the first token that may end it.
    """
    allowed = request.sampling_options.allowed_token_ids
    return request.stop_conditions.min_tokens > 1 and bool(allowed) and endings.issuperset(allowed)


Urgency = tuple[int, float, int]
"""Orders requests as vLLM's queue does, smallest first: priority, time of arrival, serial number."""


@dataclass(eq=False, slots=True)
class Answer:
    """One request. `cached_tokens` is None until the first choice has begun to run.

    The ids of `end_of_sequence` end a choice with EOS, all other stops with STOP. `num_logprobs` are the
    alternatives of a token, for a request with log-probabilities, and `lists` those of one that has any. With
    `ends_with_any` the token behind which there is no room is a stop, whatever vLLM calls it. All choices run
    on one `rank`. `embedded` is for a request to embed: done when all of its choices have their vectors, and
    it hears of what goes wrong.
    """

    context: GenerateContext
    prompt_tokens: int
    end_of_sequence: frozenset[int]
    urgency: Urgency = (0, 0.0, 0)
    num_logprobs: int = 0
    lists: Lists | None = None
    ends_with_any: bool = False
    choices: list[Choice] = field(default_factory=list)
    cached_tokens: int | None = None
    timer: asyncio.TimerHandle | None = None
    rank: int = 0
    embedded: asyncio.Future[None] | None = None

    @classmethod
    def of(
        cls,
        request: pb.PreprocessedRequest,
        context: GenerateContext,
        end_of_sequence: frozenset[int],
        stops: frozenset[int],
        urgency: Urgency,
    ) -> Answer:
        """The answer to a valid request, with choices named so that no two of a life share a name."""
        num_logprobs = request.output_options.logprobs
        lists = Lists.of(request.sampling_options)
        answer = cls(context, len(request.token_ids), end_of_sequence, urgency, num_logprobs, lists)
        answer.ends_with_any = has_only_endings(request, end_of_sequence | stops)
        answer._open(max(1, request.sampling_options.n))
        return answer

    @classmethod
    def of_inputs(
        cls, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext, urgency: Urgency
    ) -> Answer:
        """The answer to a valid request to embed, with a choice for each input. Needs a running loop."""
        total = sum(len(each.token_ids) for each in request.token_ids)
        answer = cls(context, total, frozenset(), urgency)
        answer.embedded = asyncio.get_running_loop().create_future()
        answer._open(len(request.token_ids))
        return answer

    def _open(self, n: int) -> None:
        self.choices = [Choice(self, index, f"{self.urgency[-1]}.{index}") for index in range(n)]

    @property
    def unfinished(self) -> list[Choice]:
        """Choices that have not had their terminal yet."""
        return [choice for choice in self.choices if not choice.is_finished]

    @property
    def is_fresh(self) -> bool:
        """True while no choice has produced a token or a vector."""
        return not any(choice.num_tokens or choice.is_finished for choice in self.choices)

    def cancel(self) -> Iterator[pb.LLMEngineOutput]:
        """The terminals that are missing."""
        for choice in self.unfinished:
            output = choice.output(())
            choice.end(output, pb.FINISH_REASON_CANCELLED)
            yield output

    def usage(self) -> pb.CompletionUsage:
        """Of all choices."""
        made = usage(self.prompt_tokens, sum(choice.num_tokens for choice in self.choices))
        # vLLM counts those of pictures, too.
        made.prompt_tokens_details.cached_tokens = min(self.cached_tokens or 0, self.prompt_tokens)
        return made
