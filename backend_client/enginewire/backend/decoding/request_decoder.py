"""All choices of one request: engine outputs in, backend outputs out.

Sans-IO. Holds one Decoder per choice, the checks that an engine keeps the contract, and the usage the
backend counts itself. Knows nothing about streams or retries: its owner aborts the request upstream
when `needs_abort`, and ends it with an error on ProtocolViolation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput, keep_rows, matched_stop, passed_through
from enginewire.backend.decoding.choice_state import ChoiceState
from enginewire.backend.decoding.decoder import Decoder, DecodeResult
from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.decoding.engine_check import EngineCheck
from enginewire.backend.decoding.finish_reason import finish_reason, is_known, stop_reason
from enginewire.backend.decoding.protocol_violation import (
    MAX_UINT32,
    ProtocolViolation,
    check_columns,
    check_usage,
)
from enginewire.backend.decoding.resumed_choices import go_on, resumed
from enginewire.backend.decoding.stop_conditions import InvalidStopConditions, StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary

# Beyond any engine's max_n; a decoder is made for each choice before the engine has its say.
MAX_CHOICES = 1024
TEXT_IS_MISSING = "tokens without text behind text of the engine"
ENDS_ON_A_TOKEN = frozenset({pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP})


class RequestDecoder:
    """The decoding side of one request. `process` and `process_tokens` never emit anything twice.

    `conditions.eos_token_ids` must be the engine's when the request names none. The text goes on behind
    `prompt`, or begins where that is empty. `vocab_size` is checked when given. Text is made here from
    token ids, unless `meet` was told of an engine that evaluates stop strings and it sends text from the
    first tokens of a choice on. With `validate_engine_decode` it is made here always, and what the engine
    says is compared; `is_guided`: a grammar may end a choice too. Raises InvalidStopConditions for a number
    of choices no engine has, and for a prompt that cannot be decoded.
    """

    __slots__ = (
        "_has_engine_text",
        "_is_guided",
        "_prompt",
        "_skip_special_tokens",
        "_usage_details",
        "_validate_engine_decode",
        "_vocab_size",
        "_vocabulary",
        "_with_tokens",
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
        prompt: Sequence[int] = (),
        vocab_size: int | None = None,
        skip_special_tokens: bool = True,
        with_tokens: bool = False,
        validate_engine_decode: bool = False,
        is_guided: bool = False,
    ) -> None:
        if not 1 <= num_choices <= MAX_CHOICES:
            raise InvalidStopConditions("sampling_options.n", f"must be in 1..{MAX_CHOICES}")
        self.conditions = conditions
        self._vocabulary = vocabulary
        self._prompt = prompt
        self._vocab_size = vocab_size if vocab_size is not None else MAX_UINT32
        self._skip_special_tokens = skip_special_tokens
        self._validate_engine_decode = validate_engine_decode
        self._with_tokens = with_tokens
        self._is_guided = is_guided
        self._has_engine_text = False
        self._usage_details = pb.CompletionUsage()
        # They come once: a request that is continued must not ask for them again.
        self.has_prompt_logprobs = False
        # Every choice has had its terminal output.
        self.is_finished = False
        self.choices: list[ChoiceState] = []
        try:
            first = vocabulary.detokenizer(skip_special_tokens=skip_special_tokens, prompt=prompt)
        except DecodeError as error:
            raise InvalidStopConditions("token_ids", str(error)) from error
        for stream in (first, *(copy(first) for _ in range(1, num_choices))):
            decoder = Decoder(
                vocabulary,
                conditions,
                skip_special_tokens=skip_special_tokens,
                with_tokens=with_tokens,
                vocab_size=vocab_size,
                stream=stream,
            )
            self.choices.append(ChoiceState(decoder))

    @property
    def needs_abort(self) -> bool:
        """The caller has everything, but the engine still works on the request."""
        return self.is_finished and not all(choice.engine_finished for choice in self.choices)

    @property
    def differences(self) -> Mapping[str, str]:
        """With `validate_engine_decode`: by kind, what an engine said of its tokens that is not so."""
        checks = [choice.check for choice in self.choices if choice.check]
        return {kind: what for check in checks for kind, what in check.differences.items()}

    def meet(self, capabilities: pb.Capabilities) -> None:
        """The engine that is asked next: the first one, or one that goes on."""
        self._has_engine_text = capabilities.stop_strings and not self._validate_engine_decode
        if self._validate_engine_decode:
            for choice in self.choices:
                decoder = self._decoder_like(capabilities)
                choice.check = EngineCheck(decoder, choice.token_ids, is_guided=self._is_guided)

    def take_over(self) -> bool:
        """Make all text here from now on; False where the engine has shown another one than ours."""
        return all(choice.take_over() for choice in self.choices)

    def _decoder_like(self, capabilities: pb.Capabilities) -> Decoder:
        """With the rules that an engine was given."""
        is_told = capabilities.stop_strings
        skips = self._skip_special_tokens if is_told else True
        return Decoder(
            self._vocabulary,
            self.conditions if is_told else replace(self.conditions, stop=()),
            skip_special_tokens=skips,
            stream=self._vocabulary.detokenizer(skip_special_tokens=skips, prompt=self._prompt),
        )

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
        if choice.engine_text is not None:
            raise ProtocolViolation(TEXT_IS_MISSING)
        output = BackendOutput(token_ids, None, "", index, position)
        self._decode(choice, token_ids, output, pb.FINISH_REASON_UNSPECIFIED)
        return output

    def process(self, message: pb.LLMEngineOutput) -> BackendOutput | None:
        """One output of the engine; None when its choice had ended for the caller already.

        Raises ProtocolViolation.
        """
        token_ids = list(message.token_ids)
        choice = self._receive(message.index, message.first_output_position, token_ids)
        check_columns(message)
        if message.finish_reason != pb.FINISH_REASON_UNSPECIFIED:
            self._receive_terminal(choice, message)
        if choice.is_finished:
            choice.num_dropped += len(token_ids)
            return None
        self.has_prompt_logprobs |= message.HasField("prompt_logprobs")
        output = passed_through(message)
        if choice.check is not None:
            text = message.text if message.HasField("text") else None
            choice.check.compare(choice.token_ids, token_ids, text, message.finish_reason)
        if self._is_engine_text(choice, message):
            self._pass_text(choice, message, output)
        else:
            self._decode(choice, token_ids, output, message.finish_reason)
        if message.HasField("logprobs"):
            keep_rows(output, message.logprobs)
        if output.cum_log_probs is not None:
            choice.cum_log_probs = output.cum_log_probs
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
        usage.prompt_tokens = len(self._prompt) or usage.prompt_tokens
        usage.completion_tokens = self.num_passed_on
        usage.total_tokens = min(usage.prompt_tokens + usage.completion_tokens, MAX_UINT32)
        return usage

    def go_on(self, resume: pb.Resume) -> None:
        """Begin behind what another backend has passed on. Before anything is processed.

        Raises InvalidStopConditions for a resume that no answer can have led to.
        """
        go_on(self.choices, resume)

    def resume(self) -> list[pb.ResumedChoice]:
        """Where another engine has to continue; what the lost one sent beyond that is forgotten."""
        return resumed(self.choices)

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

    def _receive_terminal(self, choice: ChoiceState, message: pb.LLMEngineOutput) -> None:
        if not is_known(message.finish_reason):
            raise ProtocolViolation(f"unknown finish reason {message.finish_reason}")
        choice.engine_finished = True
        if message.HasField("completion_usage"):
            if all(choice.engine_finished for choice in self.choices):
                received = sum(each.num_received for each in self.choices) + len(message.token_ids)
                check_usage(message.completion_usage, len(self._prompt) or None, received)
            self._usage_details.CopyFrom(message.completion_usage)

    def _is_engine_text(self, choice: ChoiceState, message: pb.LLMEngineOutput) -> bool:
        """The engine makes the text of this choice, which its first tokens decide."""
        is_text = message.HasField("text")
        if self._has_engine_text and is_text and message.token_ids and not choice.num_received:
            choice.begin_engine_text()
        elif choice.engine_text is not None and message.token_ids and not is_text:
            raise ProtocolViolation(TEXT_IS_MISSING)
        return choice.engine_text is not None

    def _pass_text(self, choice: ChoiceState, message: pb.LLMEngineOutput, output: BackendOutput) -> None:
        """The engine evaluates what ends its text. Only max_tokens is held against it."""
        assert choice.engine_text is not None
        token_ids, limit = list(message.token_ids), self.conditions.max_tokens
        result = DecodeResult(message.text, token_ids, list(message.tokens) or None)
        if limit is not None and choice.num_received + len(token_ids) > limit:
            if (cut := choice.decode_behind(token_ids)) is None:
                raise ProtocolViolation(f"text of more than max_tokens ({limit}) tokens")
            result = cut
        if result.tokens is None and self._with_tokens:
            result.tokens = [self._vocabulary.token_text(token_id) for token_id in result.token_ids]
        choice.engine_text.take(result.token_ids, result.text)
        self._emit(choice, result, output, self._drop(choice, token_ids, result, message.finish_reason))

    def _decode(
        self,
        choice: ChoiceState,
        token_ids: Sequence[int],
        output: BackendOutput,
        reason: pb.FinishReason.ValueType,
    ) -> None:
        decoder, num_before = choice.decoder, len(choice.token_ids)
        due = choice.due
        try:
            text = decoder.take_one(token_ids[0]) if len(token_ids) == 1 else None
            if text is not None and not reason and not decoder.is_finished:
                # One id more, and nothing beside its text.
                output.text, output.token_ids = due + text, token_ids
                choice.due = ""
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
        if due:
            result.text, choice.due = due + result.text, ""
        if len(result.token_ids) < len(token_ids):
            reason = self._drop(choice, token_ids, result, reason)
        self._emit(choice, result, output, reason)

    def _drop(
        self,
        choice: ChoiceState,
        token_ids: Sequence[int],
        result: DecodeResult,
        reason: pb.FinishReason.ValueType,
    ) -> pb.FinishReason.ValueType:
        """Count what is not passed on; the engine's reason, unless it ended on such a token."""
        num_dropped = len(token_ids) - len(result.token_ids)
        choice.num_dropped += num_dropped
        return pb.FINISH_REASON_UNSPECIFIED if num_dropped and reason in ENDS_ON_A_TOKEN else reason

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

    def _complete_stop(self, message: pb.LLMEngineOutput, output: BackendOutput) -> None:
        """A stop that only the engine saw, if the caller asked for it."""
        if output.finish_reason != pb.FINISH_REASON_STOP or output.stop_reason is not None:
            return
        asked = {*self.conditions.stop, *self.conditions.stop_token_ids}
        match = matched_stop(message.stop_match)
        if match in asked | self.conditions.stop_token_ids_visible:
            output.stop_reason = match
