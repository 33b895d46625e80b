"""When a choice ends and what its outputs say: stop conditions, limits, usage."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.generation.model import Model

UINT32_MAX = 2**32 - 1

Ending = tuple[pb.FinishReason.ValueType, pb.StopMatch | None]
GOES_ON: Ending = (pb.FINISH_REASON_UNSPECIFIED, None)


class Choices(Model):
    """Makes outputs."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        """The next token of a choice as an output, terminal when it is the last one."""
        request = choice.job.request
        logits = self.logits([*request.token_ids, *choice.tokens], request.routing.lora_name)
        position, token = len(choice.tokens), self.next_token(choice, logits)
        output = pb.LLMEngineOutput(token_ids=[token], first_output_position=position, index=choice.index)
        self.add_logprobs(choice, output, logits)
        choice.tokens.append(token)
        self.end(choice, output, *self.ending(choice, token))
        return output

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        """The terminal of a choice whose last token was handed in; None: it goes on."""
        position = len(choice.tokens)
        if not position or position > choice.handed_in:
            return None
        output = pb.LLMEngineOutput(first_output_position=position, index=choice.index)
        self.end(choice, output, *self.ending(choice, choice.tokens[-1]))
        return output if choice.is_finished else None

    def ending(self, choice: Choice, token: int) -> Ending:
        """Whether the token just added ends its choice, and how."""
        conditions = choice.job.request.stop_conditions
        if len(choice.tokens) >= conditions.min_tokens:
            stopped = self.stopped(choice, token)
            if stopped != GOES_ON:
                return stopped
        if len(choice.tokens) >= self.room(choice):
            return pb.FINISH_REASON_LENGTH, None
        return GOES_ON

    def stopped(self, choice: Choice, token: int) -> Ending:
        """Whether a stop condition ends the choice; hidden ids go before visible ones."""
        request = choice.job.request
        if not request.stop_conditions.ignore_eos and token in self.system_stops(request):
            return pb.FINISH_REASON_EOS, None
        if token in self.caller_stops(request):
            return pb.FINISH_REASON_STOP, pb.StopMatch(token_id=token)
        return GOES_ON

    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        """Ids that end a choice with EOS."""
        eos = request.eos_token_ids or self.config.eos_token_ids
        return [*eos, *request.stop_conditions.stop_token_ids_hidden]

    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        """Ids that end a choice with STOP."""
        conditions = request.stop_conditions
        return [*conditions.stop_token_ids, *conditions.stop_token_ids_visible]

    def room(self, choice: Choice) -> int:
        """The most output tokens of a choice."""
        request = choice.job.request
        window = self.config.context_length - len(request.token_ids)
        if request.stop_conditions.HasField("max_tokens"):
            return min(request.stop_conditions.max_tokens, window)
        return 1 if request.is_probe else window

    def end(
        self,
        choice: Choice,
        output: pb.LLMEngineOutput,
        reason: pb.FinishReason.ValueType,
        match: pb.StopMatch | None = None,
    ) -> None:
        """Make the output terminal, unless the reason says that the choice goes on."""
        if reason == pb.FINISH_REASON_UNSPECIFIED:
            return
        choice.is_finished = True
        output.finish_reason = reason
        if match:
            output.stop_match.CopyFrom(match)
        if not choice.job.open_choices:
            output.completion_usage.CopyFrom(self.usage(choice.job))

    def cancelled(self, choice: Choice) -> pb.LLMEngineOutput:
        """The terminal of a choice that was aborted."""
        output = pb.LLMEngineOutput(index=choice.index, first_output_position=len(choice.tokens))
        if choice.job.request.output_options.HasField("logprobs") and choice.tokens:
            output.cum_log_probs = choice.cum_log_probs
        self.end(choice, output, pb.FINISH_REASON_CANCELLED)
        return output

    def usage(self, job: Job) -> pb.CompletionUsage:
        """Tokens of the whole request."""
        prompt, completion = len(job.request.token_ids), job.completion_tokens
        return pb.CompletionUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=min(prompt + completion, UINT32_MAX),
            prompt_tokens_details=pb.PromptTokensDetails(cached_tokens=job.cached_tokens),
        )

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        """Log-probabilities of the output's token, and of the prompt on the very first output."""
        options, token = choice.job.request.output_options, output.token_ids[0]
        if options.HasField("logprobs") or options.logprob_token_ids:
            row = self.logprobs(logits, token, options.logprobs, options.logprob_token_ids)
            choice.cum_log_probs += row.token_logprobs[0]
            output.cum_log_probs = choice.cum_log_probs
            output.logprobs.CopyFrom(row)
        if options.HasField("prompt_logprobs") and choice.index == 0 and not output.first_output_position:
            output.prompt_logprobs.CopyFrom(self.prompt_logprobs(choice.job))
