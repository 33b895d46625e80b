"""All choices of one request: engine outputs in, backend outputs out.

Sans-IO. Holds one Decoder per choice, the checks that an engine keeps the contract, and the usage the
backend counts itself. Knows nothing about streams or retries: its owner aborts the request upstream
when `needs_abort`, and ends it with an error on ProtocolViolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from backend_client.annotated import BackendOutput, first_rows, matched_stop
from backend_client.choice_state import ChoiceState, EngineTextCheck
from backend_client.decoder import Decoder, DecodeResult
from backend_client.detokenizer import DecodeError
from backend_client.finish_reason import finish_reason, is_known, stop_reason
from backend_client.stop_conditions import InvalidStopConditions, StopConditions
from backend_client.vocabulary import Vocabulary
from enginewire import v1 as pb

MAX_UINT32 = (1 << 32) - 1
# Beyond any engine's max_n; a decoder is made for each choice before the engine has its say.
MAX_CHOICES = 1024
ENDS_ON_A_TOKEN = frozenset({pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP})


class ProtocolViolation(Exception):
    """The engine broke the contract; the message begins with `protocol violation:`."""

    def __init__(self, which: str) -> None:
        super().__init__(f"protocol violation: {which}")


class RequestDecoder:
    """The decoding side of one request. `process` and `process_tokens` never emit anything twice.

    `conditions.eos_token_ids` must be the engine's when the request names none. `num_prompt_tokens`
    and `vocab_size` are checked when given. An engine that sends text is passed through, unless
    `validate_engine_decode`: then our own text is shown, with all stop conditions, and compared.
    Raises InvalidStopConditions for a number of choices no engine has.
    """

    __slots__ = (
        "_num_prompt_tokens",
        "_usage_details",
        "_validate_engine_decode",
        "_vocab_size",
        "choices",
        "conditions",
        "has_prompt_logprobs",
        "is_finished",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        conditions: StopConditions,
        *,
        num_choices: int = 1,
        num_prompt_tokens: int | None = None,
        vocab_size: int | None = None,
        skip_special_tokens: bool = True,
        with_tokens: bool = False,
        validate_engine_decode: bool = False,
    ) -> None:
        if not 1 <= num_choices <= MAX_CHOICES:
            raise InvalidStopConditions("sampling_options.n", f"must be in 1..{MAX_CHOICES}")
        self.conditions = conditions
        self._num_prompt_tokens = num_prompt_tokens
        self._vocab_size = vocab_size if vocab_size is not None else MAX_UINT32
        self._validate_engine_decode = validate_engine_decode
        self._usage_details = pb.CompletionUsage()
        # They come once: a request that is continued must not ask for them again.
        self.has_prompt_logprobs = False
        # Every choice has had its terminal output.
        self.is_finished = False
        self.choices: list[ChoiceState] = []
        for _ in range(num_choices):
            decoder = Decoder(
                vocabulary,
                conditions,
                skip_special_tokens=skip_special_tokens,
                with_tokens=with_tokens,
                vocab_size=vocab_size,
            )
            check = EngineTextCheck(vocabulary.detokenizer(skip_special_tokens=skip_special_tokens))
            self.choices.append(ChoiceState(decoder, check))

    @property
    def needs_abort(self) -> bool:
        """The caller has everything, but the engine still works on the request."""
        return self.is_finished and not all(choice.engine_finished for choice in self.choices)

    @property
    def engine_text_differs(self) -> bool:
        """With `validate_engine_decode`: the engine's text is not what its token ids decode to."""
        return any(choice.engine_text.differs for choice in self.choices)

    def process_tokens(self, index: int, position: int, token_ids: Sequence[int]) -> BackendOutput | None:
        """Plain tokens of one choice, a row of a multiplexed frame; None for stale ones.

        Raises ProtocolViolation.
        """
        if len(token_ids) == 1 and index < len(self.choices):
            text = self.choices[index].decoder.take_known(position, token_ids[0])
            if text is not None:
                return BackendOutput(token_ids, None, text, index, position)
        choice = self._receive(index, position, token_ids)
        if choice.is_finished:
            choice.num_dropped += len(token_ids)
            return None
        output = BackendOutput(token_ids, None, "", index, position)
        self._decode(choice, token_ids, output, pb.FINISH_REASON_UNSPECIFIED)
        return output

    def process(self, message: pb.LLMEngineOutput) -> BackendOutput | None:
        """One output of the engine; None when its choice had ended for the caller already.

        Raises ProtocolViolation.
        """
        token_ids = list(message.token_ids)
        choice = self._receive(message.index, message.first_output_position, token_ids)
        self._check_columns(message)
        if message.finish_reason != pb.FINISH_REASON_UNSPECIFIED:
            self._receive_terminal(choice, message)
        if choice.is_finished:
            choice.num_dropped += len(token_ids)
            return None
        output = self._copy(message)
        if message.HasField("text") and self._validate_engine_decode:
            choice.engine_text.compare(token_ids, message.text)
        if message.HasField("text") and not self._validate_engine_decode:
            self._pass_text(choice, message, output)
        else:
            self._decode(choice, token_ids, output, message.finish_reason)
        self._cut_logprobs(choice, message, output)
        self._complete_stop(message, output)
        return output

    @property
    def num_passed_on(self) -> int:
        """Tokens of all choices, those of a resumed answer included."""
        return sum(len(choice.token_ids) for choice in self.choices)

    def usage(self) -> pb.CompletionUsage:
        """Tokens passed on, counted here; details as far as the engine's own usage was read."""
        usage = pb.CompletionUsage()
        usage.CopyFrom(self._usage_details)
        usage.prompt_tokens = self._num_prompt_tokens or usage.prompt_tokens
        usage.completion_tokens = self.num_passed_on
        usage.total_tokens = min(usage.prompt_tokens + usage.completion_tokens, MAX_UINT32)
        return usage

    def go_on(self, resume: pb.Resume) -> None:
        """Begin behind what another backend has passed on. Before anything is processed.

        Raises InvalidStopConditions for a resume that no answer can have led to.
        """
        seen: set[int] = set()
        for place, resumed in enumerate(resume.choices):
            path = f"resume.choices[{place}]"
            if resumed.index >= len(self.choices) or resumed.index in seen:
                raise InvalidStopConditions(f"{path}.index", "must be in [0, n), each at most once")
            seen.add(resumed.index)
            self._go_on(self.choices[resumed.index], resumed, path)
        if all(choice.is_finished for choice in self.choices):
            raise InvalidStopConditions("resume.choices", "must leave a choice to generate")

    def _go_on(self, choice: ChoiceState, resumed: pb.ResumedChoice, path: str) -> None:
        token_ids = list(resumed.generated_token_ids)
        choice.cum_log_probs = resumed.cum_log_probs if resumed.HasField("cum_log_probs") else None
        choice.is_finished = choice.engine_finished = resumed.finished
        try:
            choice.decoder.process(token_ids)
        except DecodeError as error:
            raise InvalidStopConditions(f"{path}.generated_token_ids", str(error)) from error
        if choice.decoder.is_finished and not resumed.finished:
            raise InvalidStopConditions(f"{path}.finished", "a stop condition is met by the tokens before")
        choice.token_ids[:] = token_ids
        choice.engine_text.skip(token_ids)
        if resumed.finished:
            choice.decoder.close()

    def resume(self) -> list[pb.ResumedChoice]:
        """Where another engine has to continue; what the lost one sent beyond that is forgotten."""
        for choice in self.choices:
            choice.num_dropped = 0
            choice.engine_finished = choice.is_finished
        return [
            pb.ResumedChoice(
                index=index,
                generated_token_ids=choice.token_ids,
                finished=choice.is_finished,
                cum_log_probs=choice.cum_log_probs,
            )
            for index, choice in enumerate(self.choices)
        ]

    def _receive(self, index: int, position: int, token_ids: Sequence[int]) -> ChoiceState:
        """The choice these tokens belong to, after the checks that hold for every output."""
        if index >= len(self.choices):
            raise ProtocolViolation(f"index {index} of n={len(self.choices)}")
        choice = self.choices[index]
        if choice.engine_finished:
            raise ProtocolViolation(f"output after the terminal of choice {index}")
        if position != choice.num_received:
            raise ProtocolViolation(f"output position {position} where {choice.num_received} was due")
        if token_ids and max(token_ids) >= self._vocab_size:
            raise ProtocolViolation(f"token id {max(token_ids)} with a vocabulary of {self._vocab_size}")
        return choice

    def _check_columns(self, message: pb.LLMEngineOutput) -> None:
        num_tokens = len(message.token_ids)
        rows = message.logprobs
        if message.HasField("logprobs"):
            wide = num_tokens * rows.top_n
            if len(rows.token_logprobs) != num_tokens or len(rows.token_ranks) not in (0, num_tokens):
                raise ProtocolViolation(f"{len(rows.token_logprobs)} logprobs for {num_tokens} tokens")
            if len(rows.top_token_ids) != wide or len(rows.top_logprobs) != wide:
                raise ProtocolViolation(f"alternatives that are not {num_tokens} rows of {rows.top_n}")
        told = (*rows.token_logprobs, *rows.top_logprobs, message.cum_log_probs)
        if not all(map(isfinite, told)):
            raise ProtocolViolation("a log-probability that is not a finite number")
        if message.tokens and len(message.tokens) != num_tokens:
            raise ProtocolViolation(f"{len(message.tokens)} token texts for {num_tokens} tokens")

    def _receive_terminal(self, choice: ChoiceState, message: pb.LLMEngineOutput) -> None:
        if not is_known(message.finish_reason):
            raise ProtocolViolation(f"unknown finish reason {message.finish_reason}")
        choice.engine_finished = True
        if message.HasField("completion_usage"):
            if all(choice.engine_finished for choice in self.choices):
                self._check_usage(message.completion_usage, len(message.token_ids))
            self._usage_details.CopyFrom(message.completion_usage)

    def _check_usage(self, usage: pb.CompletionUsage, num_new: int) -> None:
        received = sum(choice.num_received for choice in self.choices) + num_new
        if usage.completion_tokens != received:
            raise ProtocolViolation(f"usage of {usage.completion_tokens} completion tokens, {received} sent")
        if self._num_prompt_tokens not in (None, usage.prompt_tokens):
            raise ProtocolViolation(
                f"usage of {usage.prompt_tokens} prompt tokens, {self._num_prompt_tokens} requested"
            )
        if usage.total_tokens != min(usage.prompt_tokens + usage.completion_tokens, MAX_UINT32):
            raise ProtocolViolation(f"usage total {usage.total_tokens} is not the sum")

    def _copy(self, message: pb.LLMEngineOutput) -> BackendOutput:
        """What passes through unread."""
        has = message.HasField
        self.has_prompt_logprobs |= has("prompt_logprobs")
        return BackendOutput(
            index=message.index,
            first_output_position=message.first_output_position,
            cum_log_probs=message.cum_log_probs if has("cum_log_probs") else None,
            prompt_logprobs=message.prompt_logprobs if has("prompt_logprobs") else None,
            prefill_handoff=message.prefill_handoff if has("prefill_handoff") else None,
            engine_data=message.engine_data,
            error_message=message.error_message if has("error_message") else None,
        )

    def _pass_text(self, choice: ChoiceState, message: pb.LLMEngineOutput, output: BackendOutput) -> None:
        """The engine detokenizes itself: its text stands."""
        result = DecodeResult(message.text, list(message.token_ids), list(message.tokens) or None)
        choice.token_ids.extend(result.token_ids)
        self._emit(choice, result, output, message.finish_reason)

    def _decode(
        self,
        choice: ChoiceState,
        token_ids: Sequence[int],
        output: BackendOutput,
        reason: pb.FinishReason.ValueType,
    ) -> None:
        decoder, num_before = choice.decoder, len(choice.token_ids)
        try:
            text = decoder.take_one(token_ids[0]) if len(token_ids) == 1 else None
            if text is not None and not reason and not decoder.is_finished:
                # One id more, and nothing beside its text.
                output.text, output.token_ids = text, token_ids
                return
            result = decoder.process(token_ids) if text is None else decoder.result(text, token_ids)
            if reason and not decoder.is_finished:
                last = decoder.finish()
                result.text += last.text
                result.stop_trigger = last.stop_trigger
        except DecodeError as error:
            output.error_message = str(error)
            result, reason = DecodeResult("", token_ids), pb.FINISH_REASON_ERROR
            choice.token_ids[num_before:] = token_ids
        choice.num_dropped += len(token_ids) - len(result.token_ids)
        if reason in ENDS_ON_A_TOKEN and len(result.token_ids) < len(token_ids):
            reason = pb.FINISH_REASON_UNSPECIFIED  # it ended on a token that is not passed on
        self._emit(choice, result, output, reason)

    def _emit(
        self,
        choice: ChoiceState,
        result: DecodeResult,
        output: BackendOutput,
        reason: pb.FinishReason.ValueType,
    ) -> None:
        output.text, output.token_ids = result.text, result.token_ids
        if result.tokens is not None:
            output.tokens, output.withheld = result.tokens, choice.decoder.withheld
        if result.stop_trigger is None and not reason:
            return
        output.finish_reason = finish_reason(result.stop_trigger, reason)
        choice.is_finished = True
        choice.decoder.close()
        if output.finish_reason == pb.FINISH_REASON_STOP:
            output.stop_reason = stop_reason(result.stop_trigger)
        self.is_finished = all(choice.is_finished for choice in self.choices)
        if self.is_finished:
            output.completion_usage = self.usage()

    def _cut_logprobs(self, choice: ChoiceState, message: pb.LLMEngineOutput, output: BackendOutput) -> None:
        """Keep the rows of the ids that are passed on."""
        if message.HasField("logprobs"):
            kept = len(output.token_ids)
            output.logprobs = first_rows(message.logprobs, kept)
            if output.cum_log_probs is not None:
                output.cum_log_probs -= sum(message.logprobs.token_logprobs[kept:])
        if output.cum_log_probs is not None:
            choice.cum_log_probs = output.cum_log_probs

    def _complete_stop(self, message: pb.LLMEngineOutput, output: BackendOutput) -> None:
        """A stop that only the engine saw, if the caller asked for it."""
        if output.finish_reason != pb.FINISH_REASON_STOP or output.stop_reason is not None:
            return
        asked = {*self.conditions.stop, *self.conditions.stop_token_ids}
        match = matched_stop(message.stop_match)
        if match in asked | self.conditions.stop_token_ids_visible:
            output.stop_reason = match
