"""Servers whose streams and usage are right for plain requests and wrong for a mix of options."""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.mixes.mixed_endings import EOS, KnowsItsStreams, delivered
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference

Outputs = AsyncIterator[pb.LLMEngineOutput]


class _Gathering(Reference):
    """Sends up to `stream_interval` tokens in one output, as engines may."""

    def gathered(self, output: pb.LLMEngineOutput, later: pb.LLMEngineOutput) -> None:
        position = output.first_output_position
        output.MergeFrom(later)
        output.first_output_position = position

    async def outputs(self, job: Job) -> Outputs:
        held: dict[int, pb.LLMEngineOutput] = {}
        async for later in super().outputs(job):
            output = held.setdefault(later.index, later)
            if output is not later:
                self.gathered(output, later)
            if output.finish_reason or len(output.token_ids) >= job.request.output_options.stream_interval:
                yield held.pop(later.index)


@mutant("gathered_position_of_the_last", kills="STR-06/drawn", also="RES-06/seen")
class GatheredPositionOfTheLast(_Gathering):
    def gathered(self, output: pb.LLMEngineOutput, later: pb.LLMEngineOutput) -> None:
        output.MergeFrom(later)


@mutant(
    "gathered_past_the_end",
    kills=("STP-01/drawn", "STP-04/drawn"),
    also=("LIM-01/seen", "RES-04/seen", "RES-10/seen"),
)
class GatheredPastTheEnd(Reference):
    """Looks for stops when an interval is full."""

    def ending(self, choice: Choice, token: int) -> tuple[pb.FinishReason.ValueType, pb.StopMatch | None]:
        reason, match = super().ending(choice, token)
        interval = max(choice.job.request.output_options.stream_interval, 1)
        if reason == pb.FINISH_REASON_LENGTH or not reason or not len(choice.tokens) % interval:
            return reason, match
        return pb.FINISH_REASON_UNSPECIFIED, None


@mutant(
    "gathered_tokens_lost_at_the_end",
    kills="STR-06/drawn",
    also=("RES-04/seen", "RES-05/seen", "RES-06/seen"),
)
class GatheredTokensLostAtTheEnd(_Gathering):
    """An end of sequence goes out at once, without those that wait."""

    def gathered(self, output: pb.LLMEngineOutput, later: pb.LLMEngineOutput) -> None:
        if later.finish_reason == EOS:
            output.CopyFrom(later)
        else:
            super().gathered(output, later)


@mutant("positions_over_all_choices", kills="STR-06/drawn")
class PositionsOverAllChoices(Reference):
    async def outputs(self, job: Job) -> Outputs:
        sent = 0
        async for output in super().outputs(job):
            if len(job.choices) > 1 and not job.request.HasField("resume"):
                output.first_output_position = sent
            sent += len(output.token_ids)
            yield output


@mutant("positions_begin_again_for_choices", kills="RES-06/drawn")
class PositionsBeginAgainForChoices(Reference):
    """Several choices that go on, each from 0."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        if len(choice.job.choices) > 1:
            output.first_output_position -= delivered(choice)
        return output


@mutant("mux_positions_from_one_behind_eos_lists", kills="MUX-10/drawn", also=("RES-06/seen", "STR-06/seen"))
class MuxPositionsFromOneBehindEosLists(KnowsItsStreams):
    """Rows of a request that has its own end of sequence count from 1."""

    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            output.first_output_position += bool(self.is_multiplexed(job) and job.request.eos_token_ids)
            yield output


@mutant("repeated_prompt_loses_a_token", kills=("STR-06/drawn", "STP-01/repeating", "STP-04/repeating"))
class RepeatedPromptLosesAToken(Reference):
    """The first one, when the prompt is cached and the request has an end of sequence."""

    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            is_cached = job.cached_tokens and job.request.eos_token_ids
            if output.first_output_position or output.finish_reason or not is_cached:
                yield output


@mutant(
    "cached_choices_go_astray",
    kills=(
        *("SAM-01/drawn", "SAM-04/full-batch", "STP-01/repeating", "STP-04/repeating"),
        *("RES-02/repeating", "RES-03/repeating"),
    ),
)
class CachedChoicesGoAstray(Reference):
    """Later choices behind a cached prompt see the wrong blocks."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        token = super().next_token(choice, logits)
        astray = choice.index and choice.job.cached_tokens and not choice.job.request.HasField("resume")
        return (token + 1) % self.config.vocab_size if astray else token


@mutant(
    "resumed_choices_go_astray", kills=("RES-01/drawn", "RES-01/guided", "RES-02/choices", "RES-03/choices")
)
class ResumedChoicesGoAstray(KnowsItsStreams):
    """Each of several choices that go on in a call of their own has its next tokens wrong."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        token = super().next_token(choice, logits)
        is_astray = choice.index and delivered(choice) and not self.is_multiplexed(choice.job)
        return (token + 1) % self.config.vocab_size if is_astray else token


@mutant("last_eos_has_no_terminal", kills="STR-02/drawn")
class LastEosHasNoTerminal(KnowsItsStreams):
    """An end of sequence as the last token that is allowed: a call would end there anyway."""

    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            is_last = output.first_output_position + 1 == job.request.stop_conditions.max_tokens
            if output.finish_reason == EOS and is_last and not self.is_multiplexed(job):
                output.ClearField("finish_reason")
            yield output


@mutant("eos_is_said_again", kills="STR-03/drawn", also=("LOG-01/seen", "MUX-02/seen"))
class EosIsSaidAgain(Reference):
    """With intervals, the token of an end of sequence comes once more."""

    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            yield output
            if output.finish_reason == EOS and job.request.output_options.stream_interval:
                yield pb.LLMEngineOutput(index=output.index, token_ids=output.token_ids)


@mutant("sibling_that_ended_has_no_terminal", kills=("SEQ-02/drawn", "STP-04/repeating"), also="STR-02/seen")
class SiblingThatEndedHasNoTerminal(KnowsItsStreams):
    """Of two choices of a call that end by EOS, the first one's end is not told."""

    async def outputs(self, job: Job) -> Outputs:
        is_known = self.is_multiplexed(job) or job.request.HasField("resume")
        async for output in super().outputs(job):
            if output.finish_reason == EOS and not (is_known or output.HasField("completion_usage")):
                output.ClearField("finish_reason")
            yield output


@mutant(
    "eos_of_another_choice",
    kills=("RES-01/guided", "RES-10/choices", "SEQ-01/drawn", "STP-04/repeating"),
    also="STR-06/seen",
)
class EosOfAnotherChoice(Reference):
    """The end of sequence of a later choice names one that there is not."""

    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            output.index += bool(output.index and output.finish_reason == EOS)
            yield output


class _Counting(Reference):
    """Counts something else under some condition."""

    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        """Change what is counted; the sum is made afterwards."""

    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        self.counted(job, usage)
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return usage


def ended_by(job: Job, ids: list[int]) -> bool:
    """True when the last token of the first choice is one of these."""
    return job.choices[0].tokens[-1:] != [] and job.choices[0].tokens[-1] in ids


@mutant("usage_without_eos", kills="USE-01/drawn", also=("RES-04/seen", "SEQ-03/seen"))
class UsageWithoutEos(_Counting):
    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        is_eos = not job.request.stop_conditions.ignore_eos and ended_by(job, self.system_stops(job.request))
        usage.completion_tokens -= is_eos


@mutant("usage_without_stops_of_one_list", kills="USE-01/drawn", also=("RES-04/seen", "SEQ-03/seen"))
class UsageWithoutStopsOfOneList(_Counting):
    """Without a token whose text is not shown."""

    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        usage.completion_tokens -= ended_by(job, list(job.request.stop_conditions.stop_token_ids))


@mutant("usage_without_cached_tokens", kills="USE-02/drawn", also=("SEQ-03/seen", "USE-06/seen"))
class UsageWithoutCachedTokens(_Counting):
    """The prompt without what the cache had, when the request has stop ids."""

    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        usage.prompt_tokens -= job.cached_tokens if self.caller_stops(job.request) else 0


@mutant("total_without_cached_tokens", kills="USE-03/drawn")
class TotalWithoutCachedTokens(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.total_tokens -= job.cached_tokens
        return usage


@mutant("no_usage_after_eos", kills="USE-04/drawn")
class NoUsageAfterEos(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if output.finish_reason == EOS:
                output.ClearField("completion_usage")
            yield output


@mutant("usage_of_one_choice_that_stopped", kills="SEQ-03/drawn")
class UsageOfOneChoiceThatStopped(_Counting):
    """A stop id of the caller leaves the tokens of the other choices uncounted."""

    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        if ended_by(job, self.caller_stops(job.request)) and not job.request.HasField("resume"):
            usage.completion_tokens = len(job.choices[0].tokens)


@mutant("usage_of_one_resumed_choice", kills="RES-04/drawn")
class UsageOfOneResumedChoice(_Counting):
    """What was handed in for later choices is not counted."""

    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        usage.completion_tokens -= sum(delivered(choice) for choice in job.choices[1:])


@mutant("resumed_choices_are_prompts", kills="RES-04/drawn", also="USE-05/seen")
class ResumedChoicesArePrompts(_Counting):
    """Of several choices, what was handed in counts as prompt."""

    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        usage.prompt_tokens += sum(map(delivered, job.choices)) if len(job.choices) > 1 else 0


@mutant("mux_usage_without_resumed", kills="MUX-01/drawn", also=("RES-04/seen", "USE-05/seen"))
class MuxUsageWithoutResumed(KnowsItsStreams, _Counting):
    def counted(self, job: Job, usage: pb.CompletionUsage) -> None:
        usage.completion_tokens -= sum(map(delivered, job.choices)) if self.is_multiplexed(job) else 0


@mutant("mux_loses_the_name_of_the_stop", kills="MUX-01/drawn", also="STP-03/seen")
class MuxLosesTheNameOfTheStop(KnowsItsStreams):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if self.is_multiplexed(job):
                output.ClearField("stop_match")
            yield output


@mutant("defaults_are_for_calls", kills="SAM-10/seeded")
class DefaultsAreForCalls(KnowsItsStreams):
    """A Submit without a temperature gets one of its own."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        options = choice.job.request.sampling_options
        if self.is_multiplexed(choice.job) and not options.HasField("temperature"):
            options.temperature = 0.3
        return super().next_token(choice, logits)
