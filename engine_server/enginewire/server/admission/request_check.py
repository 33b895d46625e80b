"""What an engine sends for one request, held against the contract, token by token.

A fault is a sentence for the engine's author. Knows nothing about other requests, steps or streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from enginewire import v1 as pb
from enginewire.server.engines.answer import usage
from enginewire.server.validation.payloads import prompt_length

ROUNDING: Final = 1e-3
"""How far above 0 a log-probability may be."""

FINISHES: Final = frozenset(pb.FinishReason.values()) - {pb.FINISH_REASON_UNSPECIFIED}


class RequestCheck:
    """The choices of one request: what they have got, and what may come next."""

    def __init__(self, request: pb.PreprocessedRequest, config: pb.EngineConfig) -> None:
        self._is_prefill = config.role == pb.ENGINE_ROLE_PREFILL and not request.is_probe
        options, stop = request.sampling_options, request.stop_conditions
        num_choices = 1 if self._is_prefill else max(1, options.n)
        self._counts = dict.fromkeys(range(num_choices), 0)
        self._open = set(self._counts)
        self._handed_in: dict[int, int] = {}
        for choice in request.resume.choices:
            self._counts[choice.index] = len(choice.generated_token_ids)
            self._handed_in.update((choice.index, token) for token in choice.generated_token_ids[-1:])
            if choice.finished:
                self._open.discard(choice.index)
        self._num_prompt = prompt_length(request)
        self._most = stop.max_tokens if stop.HasField("max_tokens") else math.inf
        if config.HasField("context_length"):
            self._most = min(self._most, config.context_length - self._num_prompt)
        self._min_tokens, self._vocab_size = stop.min_tokens, config.vocab_size
        self._stops = frozenset({*stop.stop_token_ids, *stop.stop_token_ids_visible})
        eos = {*(request.eos_token_ids or config.eos_token_ids), *stop.stop_token_ids_hidden}
        self._eos = frozenset() if stop.ignore_eos else frozenset(eos)
        self._allowed = None if stop.HasField("max_thinking_tokens") else frozenset(options.allowed_token_ids)
        self._evaluates_text = config.capabilities.stop_strings
        output = request.output_options
        self._scores = output.HasField("logprobs") or bool(output.logprob_token_ids)

    def row(self, index: int, position: int, token_id: int) -> str | None:
        """The fault of a bare token, which is counted; None: there is none."""
        return self._fault_of_place(index, position) or self._fault_of_token(index, token_id, is_last=False)

    def output(self, output: object) -> str | None:
        """The fault of an output, which is counted; None: there is none."""
        return next(self._faults(output), None)

    def _faults(self, output: object) -> Iterator[str]:
        if not isinstance(output, pb.LLMEngineOutput):
            yield f"an output must be an LLMEngineOutput, got {type(output).__name__}"
            return
        index, is_terminal = output.index, bool(output.finish_reason)
        if place := self._fault_of_place(index, output.first_output_position):
            yield place
            return
        for i, token_id in enumerate(output.token_ids):
            is_last = is_terminal and i == len(output.token_ids) - 1
            if fault := self._fault_of_token(index, token_id, is_last=is_last):
                yield fault
        yield from self._faults_of_scores(output)
        yield from self._faults_of_end(output) if is_terminal else self._faults_of_part(output)

    def _fault_of_place(self, index: int, position: int) -> str | None:
        if index not in self._open:
            return f"choice {index} has ended or was not asked for, and gets more"
        if position != self._counts[index]:
            return f"position {position} of choice {index}, expected {self._counts[index]}: they count from 0"
        return None

    def _fault_of_token(self, index: int, token_id: int, *, is_last: bool) -> str | None:
        self._counts[index] += 1
        self._handed_in.pop(index, None)
        count = self._counts[index]
        if not 0 <= token_id < self._vocab_size:
            return f"token id {token_id} is not below vocab_size {self._vocab_size}"
        if count > self._most:
            return (
                f"choice {index} has {count} tokens, at most {self._most} fit max_tokens and context_length"
            )
        if self._allowed and token_id not in self._allowed:
            return f"token id {token_id} is not among allowed_token_ids"
        if not is_last and count >= self._min_tokens and token_id in self._eos | self._stops:
            return (
                f"token id {token_id} is a stop or end-of-sequence id, but choice {index} goes on behind it"
            )
        return None

    def _faults_of_part(self, output: pb.LLMEngineOutput) -> Iterator[str]:
        if not output.token_ids:
            yield "an output without token_ids, which only one with a finish_reason may be"
        for name in ("completion_usage", "stop_match", "prefill_handoff", "error_message"):
            if output.HasField(name):
                yield f"{name} belongs to an output with a finish_reason"

    def _faults_of_end(self, output: pb.LLMEngineOutput) -> Iterator[str]:
        self._open.remove(output.index)
        reason = output.finish_reason
        if reason not in FINISHES:
            yield f"finish_reason {reason} is none of the contract's"
        if output.HasField("error_message") and reason != pb.FINISH_REASON_ERROR:
            yield "error_message goes with FINISH_REASON_ERROR only"
        yield from self._faults_of_stop(output)
        if self._open:
            if output.HasField("completion_usage"):
                yield "completion_usage belongs to the last terminal output, and another choice goes on"
            return
        expected = usage(self._num_prompt, sum(self._counts.values()))
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            got: int = getattr(output.completion_usage, name)
            if got != getattr(expected, name):
                yield f"completion_usage.{name} is {got}, expected {getattr(expected, name)}"

    def _faults_of_stop(self, output: pb.LLMEngineOutput) -> Iterator[str]:
        """The reason follows from the last token, whatever the engine says."""
        if self._evaluates_text or output.finish_reason == pb.FINISH_REASON_CANCELLED:
            return
        last = output.token_ids[-1] if output.token_ids else self._handed_in.get(output.index)
        if output.finish_reason == pb.FINISH_REASON_STOP:
            if last not in self._stops or output.stop_match.token_id != last:
                yield f"FINISH_REASON_STOP after token id {last}: needs a stop id, and stop_match with it"
        elif output.HasField("stop_match"):
            yield "stop_match goes with FINISH_REASON_STOP only"
        if self._counts[output.index] < self._min_tokens and output.finish_reason == pb.FINISH_REASON_STOP:
            yield f"choice {output.index} was stopped below min_tokens {self._min_tokens}"

    def _faults_of_scores(self, output: pb.LLMEngineOutput) -> Iterator[str]:
        table, rows = output.logprobs, len(output.token_ids)
        if not self._scores:
            if output.HasField("logprobs"):
                yield "logprobs that were not asked for"
            return
        if len(table.token_logprobs) != rows:
            yield f"logprobs have {len(table.token_logprobs)} rows for {rows} token_ids"
        if len(table.top_token_ids) != rows * table.top_n or len(table.top_logprobs) != rows * table.top_n:
            yield f"logprobs need top_n {table.top_n} alternatives in each of {rows} rows"
        values = (*table.token_logprobs, *table.top_logprobs, *table.selected_logprobs)
        if any(not math.isfinite(value) or value > ROUNDING for value in values):
            yield "logprobs must be finite and at most 0; probability zero is -1e30"
