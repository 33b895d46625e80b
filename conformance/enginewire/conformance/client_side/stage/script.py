"""What the scripted engine says to one request, step by step. Sends nothing itself.

Positions and usage are counted as the contract demands; a step that names its own breaks it on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage.alphabet import Piece, ids

EOS = pb.FINISH_REASON_EOS
LENGTH = pb.FINISH_REASON_LENGTH
STOP = pb.FINISH_REASON_STOP
ERROR = pb.FINISH_REASON_ERROR
CANCELLED = pb.FINISH_REASON_CANCELLED


@dataclass(frozen=True, slots=True)
class Say:
    """One output. `finish` makes it terminal, `position` breaks the count, `row` has log-probabilities.

    `selected` has those of ids that were asked for, `top` the ids of alternatives, both row by row.

    `text` is what an engine says of it that detokenizes; `stop` is the stop string that it found.
    """

    pieces: Sequence[Piece] = ()
    finish: int = 0
    index: int = 0
    position: int | None = None
    row: Sequence[float] = ()
    selected: Sequence[float] = ()
    top: Sequence[int] = ()
    stop_token: int | None = None
    usage: pb.CompletionUsage | None = None
    error: str = ""
    text: str | None = None
    stop: str = ""

    @property
    def token_ids(self) -> list[int]:
        """Its token ids."""
        return ids(*self.pieces)


def value_of_alternative(token: int) -> float:
    """The log-probability of an alternative, exact in any float."""
    return -0.125 * token


def say(*pieces: Piece, finish: int = 0, index: int = 0) -> Say:
    """An output with these tokens."""
    return Say(pieces, finish, index)


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until the check lets go, or the backend leaves."""

    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Stay:
    """Say nothing more until the backend leaves."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """As the first step: neither accept nor refuse until the backend leaves."""


@dataclass(frozen=True, slots=True)
class Fail:
    """End with a status. As the first step: a refusal before acceptance."""

    code: grpc.StatusCode
    reason: pb.ErrorReason.ValueType
    retryable: bool = False
    field: str = ""
    message: str = "scripted"
    retry_after_ms: int = 0

    @property
    def detail(self) -> pb.Status:
        """The status as `grpc-status-details-bin` has it."""
        status = pb.Status(code=self.code.value[0], message=self.message)
        detail = pb.ErrorDetail(reason=self.reason, field=self.field, retryable=self.retryable)
        if self.retry_after_ms:
            detail.retry_after.FromMilliseconds(self.retry_after_ms)
        status.details.add().Pack(detail)
        return status


Step = Say | Hold | Stay | Undecided | Fail | pb.EngineEvent

BEFORE_ACCEPTANCE = (Undecided, Fail)
"""First steps of a request that is not accepted."""

WITHDRAWN = Fail(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED)
"""What an engine says of a request that was aborted before it was accepted."""

DIED = Fail(grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_ENGINE_DEAD, retryable=True)
"""The engine is lost in the middle of an answer."""

HANDED_BACK = Fail(grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_DRAINING, retryable=True)
"""The engine goes away before it has begun."""


def spoken(*text: str) -> list[Step]:
    """A message per character: text split over tokens and messages as much as it can be."""
    return [Say([byte.to_bytes(1, "big")]) for part in text for byte in part.encode()]


@dataclass(slots=True)
class Speaker:
    """Turns the steps of one call into outputs."""

    request: pb.PreprocessedRequest
    finished: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    sums: dict[int, float] = field(default_factory=dict)
    """Of log-probabilities."""

    def __post_init__(self) -> None:
        for choice in self.request.resume.choices:
            self.counts[choice.index] = len(choice.generated_token_ids)
            self.sums[choice.index] = choice.cum_log_probs
            if choice.finished:
                self.finished.add(choice.index)

    @property
    def is_finished(self) -> bool:
        """Every choice had its terminal."""
        return not self.unfinished

    @property
    def unfinished(self) -> list[int]:
        """Choices that had no terminal."""
        every = range(max(1, self.request.sampling_options.n))
        return [index for index in every if index not in self.finished]

    def output(self, step: Say) -> pb.LLMEngineOutput:
        """The output of a step."""
        count = self.counts.get(step.index, 0)
        output = pb.LLMEngineOutput(
            token_ids=step.token_ids,
            index=step.index,
            first_output_position=count if step.position is None else step.position,
            text=step.text,
        )
        self.counts[step.index] = count + len(output.token_ids)
        if step.row:
            self.sums[step.index] = output.cum_log_probs = self.sums.get(step.index, 0.0) + sum(step.row)
            output.logprobs.CopyFrom(pb.Logprobs(token_logprobs=step.row, selected_logprobs=step.selected))
            if step.top:
                output.logprobs.top_n = len(step.top) // len(step.row)
                output.logprobs.top_token_ids.extend(step.top)
                output.logprobs.top_logprobs.extend(map(value_of_alternative, step.top))
        if step.finish:
            self._finish(output, step)
        return output

    def _finish(self, output: pb.LLMEngineOutput, step: Say) -> None:
        # An open enum: a script may use a number that the contract does not name.
        output.finish_reason = step.finish  # type: ignore[assignment]
        self.finished.add(step.index)
        if step.stop_token is not None:
            output.stop_match.token_id = step.stop_token
        if step.stop:
            output.stop_match.text = step.stop
        if step.error:
            output.error_message = step.error
        if step.usage or self.is_finished:
            output.completion_usage.CopyFrom(step.usage or self._usage())

    def _usage(self) -> pb.CompletionUsage:
        prompt, completion = len(self.request.token_ids), sum(self.counts.values())
        return pb.CompletionUsage(
            prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
        )
