"""What callers of the backend receive, as light values.

Holds `BackendOutput`, `Annotated` and their translation to and from the contract's messages of the
same names. Knows nothing about how outputs come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure

__all__ = [
    "Annotated",
    "BackendOutput",
    "Failure",
    "annotated_event",
    "annotated_from_proto",
    "annotated_to_proto",
    "first_rows",
    "keep_rows",
    "matched_stop",
    "passed_through",
]

T = TypeVar("T")


@dataclass(slots=True)
class BackendOutput:
    """A piece of one choice with its text.

    `token_ids`, `tokens` and the rows of `logprobs` are aligned, even while text is withheld; `tokens` has
    the text of each id on its own, shown or not, and `text` is what may be shown now. `withheld`, filled
    beside `tokens` and not sent over gRPC, may still become a stop string. `finish_reason` is
    UNSPECIFIED while the choice goes on.
    """

    token_ids: Sequence[int] = ()
    tokens: Sequence[str] | None = None
    text: str = ""
    index: int = 0
    first_output_position: int = 0
    finish_reason: pb.FinishReason.ValueType = pb.FINISH_REASON_UNSPECIFIED
    stop_reason: str | int | None = None
    cum_log_probs: float | None = None
    logprobs: pb.Logprobs | None = None
    prompt_logprobs: pb.PromptLogprobs | None = None
    completion_usage: pb.CompletionUsage | None = None
    prefill_handoff: pb.PrefillHandoff | None = None
    engine_data: bytes = b""
    error_message: str | None = None
    withheld: str = ""

    @property
    def is_terminal(self) -> bool:
        """True on the last output of the choice."""
        return self.finish_reason != pb.FINISH_REASON_UNSPECIFIED

    @property
    def log_probs(self) -> list[float]:
        """Log-probability of each token; empty when not asked for."""
        return list(self.logprobs.token_logprobs) if self.logprobs else []

    @property
    def top_logprobs(self) -> list[list[tuple[int, float]]]:
        """Per token its alternatives as (token id, log-probability), most probable first."""
        if self.logprobs is None or not self.logprobs.top_n:
            return []
        width = self.logprobs.top_n
        pairs = list(zip(self.logprobs.top_token_ids, self.logprobs.top_logprobs, strict=True))
        return [pairs[begin : begin + width] for begin in range(0, len(pairs), width)]

    def to_proto(self) -> pb.BackendOutput:
        """The message of the same name."""
        message = pb.BackendOutput(
            token_ids=self.token_ids,
            tokens=self.tokens or (),
            text=self.text or None,
            cum_log_probs=self.cum_log_probs,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            finish_reason=self.finish_reason,
            index=self.index,
            first_output_position=self.first_output_position,
            completion_usage=self.completion_usage,
            prefill_handoff=self.prefill_handoff,
            engine_data=self.engine_data,
            error_message=self.error_message,
        )
        if isinstance(self.stop_reason, str):
            message.stop_reason.text = self.stop_reason
        elif self.stop_reason is not None:
            message.stop_reason.token_id = self.stop_reason
        return message

    @classmethod
    def from_proto(cls, message: pb.BackendOutput) -> BackendOutput:
        """The value of a message."""
        has = message.HasField
        return cls(
            token_ids=list(message.token_ids),
            tokens=list(message.tokens) or None,
            text=message.text,
            index=message.index,
            first_output_position=message.first_output_position,
            finish_reason=message.finish_reason,
            stop_reason=matched_stop(message.stop_reason),
            cum_log_probs=message.cum_log_probs if has("cum_log_probs") else None,
            logprobs=message.logprobs if has("logprobs") else None,
            prompt_logprobs=message.prompt_logprobs if has("prompt_logprobs") else None,
            completion_usage=message.completion_usage if has("completion_usage") else None,
            prefill_handoff=message.prefill_handoff if has("prefill_handoff") else None,
            engine_data=message.engine_data,
            error_message=message.error_message if has("error_message") else None,
        )


@dataclass(slots=True)
class Annotated(Generic[T]):
    """Data with everything that may travel beside it; an event without data passes untouched."""

    data: T | None = None
    id: str | None = None
    event: str | None = None
    comment: Sequence[str] = ()
    error: Failure | None = None


def passed_through(message: pb.LLMEngineOutput) -> BackendOutput:
    """What a backend passes on of an engine's output without reading it."""
    has = message.HasField
    return BackendOutput(
        index=message.index,
        first_output_position=message.first_output_position,
        cum_log_probs=message.cum_log_probs if has("cum_log_probs") else None,
        prompt_logprobs=message.prompt_logprobs if has("prompt_logprobs") else None,
        prefill_handoff=message.prefill_handoff if has("prefill_handoff") else None,
        engine_data=message.engine_data,
        error_message=message.error_message if has("error_message") else None,
    )


def annotated_event(event: pb.EngineEvent) -> Annotated[BackendOutput]:
    """The item of what an engine tells beside its outputs."""
    return Annotated(
        id=event.id if event.HasField("id") else None,
        event=event.event,
        comment=tuple(event.comment),
    )


def annotated_to_proto(item: Annotated[BackendOutput]) -> pb.Annotated:
    """The message of an item."""
    return pb.Annotated(
        data=item.data.to_proto() if item.data is not None else None,
        id=item.id,
        event=item.event,
        comment=item.comment,
        error=item.error.to_proto() if item.error is not None else None,
    )


def annotated_from_proto(message: pb.Annotated) -> Annotated[BackendOutput]:
    """The item of a message."""
    return Annotated(
        data=BackendOutput.from_proto(message.data) if message.HasField("data") else None,
        id=message.id if message.HasField("id") else None,
        event=message.event if message.HasField("event") else None,
        comment=tuple(message.comment),
        error=Failure.from_proto(message.error) if message.HasField("error") else None,
    )


def matched_stop(match: pb.StopMatch) -> str | int | None:
    """The stop string or token id of a StopMatch, None when neither is set."""
    match match.WhichOneof("match"):
        case "text":
            return match.text
        case "token_id":
            return match.token_id
    return None


def keep_rows(output: BackendOutput, logprobs: pb.Logprobs) -> None:
    """Give an output the rows of its token ids, which may be fewer than came."""
    kept = len(output.token_ids)
    output.logprobs = first_rows(logprobs, kept)
    if output.cum_log_probs is not None:
        output.cum_log_probs -= sum(logprobs.token_logprobs[kept:])


def first_rows(logprobs: pb.Logprobs, num_rows: int) -> pb.Logprobs:
    """The first `num_rows` rows of every column."""
    total = len(logprobs.token_logprobs)
    if num_rows >= total:
        return logprobs
    selected = len(logprobs.selected_logprobs) // total
    return pb.Logprobs(
        token_logprobs=logprobs.token_logprobs[:num_rows],
        token_ranks=logprobs.token_ranks[:num_rows],
        top_n=logprobs.top_n,
        top_token_ids=logprobs.top_token_ids[: num_rows * logprobs.top_n],
        top_logprobs=logprobs.top_logprobs[: num_rows * logprobs.top_n],
        selected_logprobs=logprobs.selected_logprobs[: num_rows * selected],
    )
