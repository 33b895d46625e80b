"""From an engine's outputs to the dictionaries that Dynamo's frontend takes.

Sans-IO. The frontend makes the text: what is sent are token ids, and what belongs to them. Knows nothing
about requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.engines.failure import violation
from enginewire.backend.engines.stream import Chunk

Json = Mapping[str, object]

REASONS: Final = {
    pb.FINISH_REASON_EOS: "eos",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_CANCELLED: "cancelled",
    pb.FINISH_REASON_CONTENT_FILTER: "content_filter",
}
CANCELLED: Final[Json] = {"token_ids": [], "index": 0, "finish_reason": REASONS[pb.FINISH_REASON_CANCELLED]}
# JSON has no infinity; the contract's "practically never" is -1e30.
LEAST_LOGPROB: Final = -9999.0


class Answer:
    """Chunks in, dictionaries out."""

    def __init__(self, prompt: Sequence[int], num_choices: int) -> None:
        self._prompt = prompt
        # Of each choice that has not ended, the position of its next token.
        self._open = dict.fromkeys(range(num_choices), 0)
        self.has_begun = False
        # Log-probabilities of the prompt come first and are sent last, as the frontend reads them.
        self._prompt_logprobs: list[Json | None] | None = None

    @property
    def is_finished(self) -> bool:
        """Every choice has ended."""
        return not self._open

    def output(self, chunk: Chunk) -> Json:
        """What one chunk becomes. Raises RequestFailed when it is not the next one of its choice."""
        if self._open.get(chunk.index) != chunk.first_output_position:
            raise violation(f"choice {chunk.index} goes on at {chunk.first_output_position}, or has ended")
        self._open[chunk.index] += len(chunk.token_ids)
        self.has_begun = True
        said: dict[str, object] = {"token_ids": chunk.token_ids, "index": chunk.index}
        if chunk.output is not None:
            said |= self._beside(chunk.output)
        return said

    def _beside(self, output: pb.LLMEngineOutput) -> dict[str, object]:
        """Everything but the token ids."""
        said = logprobs_of(output)
        if output.HasField("prompt_logprobs"):
            self._prompt_logprobs = prompt_rows(self._prompt, output.prompt_logprobs.logprobs)
        if output.finish_reason:
            del self._open[output.index]
            said |= end_of(output)
        if data := self._engine_data(output):
            said["engine_data"] = data
        return said

    def _engine_data(self, output: pb.LLMEngineOutput) -> dict[str, object]:
        data: dict[str, object] = json.loads(output.engine_data) if output.engine_data else {}
        if self.is_finished and self._prompt_logprobs is not None:
            data["prompt_logprobs"] = self._prompt_logprobs
        return data


def end_of(output: pb.LLMEngineOutput) -> dict[str, object]:
    """Why a choice has ended, and what the request has taken."""
    said: dict[str, object] = {"finish_reason": REASONS.get(output.finish_reason) or error_of(output)}
    if output.stop_match.WhichOneof("match") == "token_id":
        said["stop_reason"] = output.stop_match.token_id
    if output.HasField("completion_usage"):
        said["completion_usage"] = usage_of(output.completion_usage)
    return said


def error_of(output: pb.LLMEngineOutput) -> str:
    """How Dynamo writes that a choice has failed."""
    return f"error: {output.error_message or 'the engine failed'}"


def usage_of(usage: pb.CompletionUsage) -> Json:
    """Tokens of all choices."""
    said: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    for name in ("prompt_tokens_details", "completion_tokens_details"):
        if usage.HasField(name):
            said[name] = {field.name: value for field, value in getattr(usage, name).ListFields()}
    return said


def logprobs_of(output: pb.LLMEngineOutput) -> dict[str, object]:
    """Those of the tokens and of the most probable ones beside them; the frontend knows their texts."""
    if not output.HasField("logprobs"):
        return {}
    columns = output.logprobs
    said: dict[str, object] = {"log_probs": [finite(value) for value in columns.token_logprobs]}
    if columns.top_n:
        said["top_logprobs"] = [
            [
                {"rank": rank, "token_id": token_id, "token": None, "logprob": logprob}
                for rank, (token_id, logprob) in enumerate(row, start=1)
            ]
            for row in top_rows(columns)
        ]
    if output.HasField("cum_log_probs"):
        said["cum_log_probs"] = output.cum_log_probs
    return said


def prompt_rows(prompt: Sequence[int], columns: pb.Logprobs) -> list[Json | None]:
    """One row per token of the prompt, by their ids; the first token has none."""
    rows: list[Json | None] = [None]
    tops = top_rows(columns) if columns.top_n else [[] for _ in columns.token_logprobs]
    for place, (logprob, top) in enumerate(zip(columns.token_logprobs, tops, strict=True)):
        row: dict[str, object] = {
            str(token_id): {"logprob": value, "rank": rank}
            for rank, (token_id, value) in enumerate(top, start=1)
        }
        own: dict[str, object] = {"logprob": finite(logprob)}
        if columns.token_ranks:
            own["rank"] = columns.token_ranks[place]
        rows.append({str(prompt[place + 1]): own} | row)
    return rows


def top_rows(columns: pb.Logprobs) -> list[list[tuple[int, float]]]:
    """The alternatives of each row, with their log-probabilities."""
    pairs = list(zip(columns.top_token_ids, map(finite, columns.top_logprobs), strict=True))
    return [pairs[begin : begin + columns.top_n] for begin in range(0, len(pairs), columns.top_n)]


def finite(logprob: float) -> float:
    """A log-probability that every reader of JSON can do with."""
    return max(logprob, LEAST_LOGPROB)
