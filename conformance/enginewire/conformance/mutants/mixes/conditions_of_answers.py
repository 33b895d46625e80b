"""Servers that are right until a second condition comes to the first one.

Several choices, an interval, a list of two, a long answer, a repeated prompt: no check asks for these
together, and the monitor sees them in the traffic of others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference

Outputs = AsyncIterator[pb.LLMEngineOutput]
CHOICES = ("SEQ-*", "INF-09/together")
GATHERED = ("MSG-03", "INF-09/together")


def has_several(job: Job) -> bool:
    """More than one choice was asked for."""
    return len(job.choices) > 1


def interval_of(job: Job) -> int:
    """How many tokens may be gathered."""
    return job.request.output_options.stream_interval


class Gathering(Reference):
    """As an engine that does what stream_interval allows: runs of several tokens."""

    async def outputs(self, job: Job) -> Outputs:
        held: dict[int, pb.LLMEngineOutput] = {}
        async for output in super().outputs(job):
            run = held.setdefault(output.index, pb.LLMEngineOutput())
            position = run.first_output_position if run.token_ids else output.first_output_position
            run.MergeFrom(output)
            run.first_output_position = position
            if run.finish_reason or len(run.token_ids) >= interval_of(job):
                yield self.gathered(job, held.pop(output.index))

    def gathered(self, job: Job, run: pb.LLMEngineOutput) -> pb.LLMEngineOutput:
        """A place to be wrong."""
        return run


# -- usage


@mutant(
    "usage_of_choices_without_their_stops",
    kills=("SEQ-03/drawn", "SEQ-03/seen"),
    also=("RES-04/seen", "USE-05/seen"),
    traffic=CHOICES,
)
class UsageOfChoicesWithoutTheirStops(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        stops = {*self.system_stops(job.request), *self.caller_stops(job.request)}
        if has_several(job):
            missing = sum(choice.tokens[-1] in stops for choice in job.choices if choice.tokens)
            usage.completion_tokens -= missing
            usage.total_tokens -= missing
        return usage


@mutant("usage_with_every_choice", kills=("SEQ-03/drawn", "USE-04/seen"), traffic=CHOICES)
class UsageWithEveryChoice(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if has_several(job) and output.finish_reason:
                output.completion_usage.CopyFrom(self.usage(job))
            yield output


@mutant(
    "prompt_tokens_without_cached_ones",
    kills=("USE-06", "USE-02/drawn", "USE-02/seen"),
    also="SEQ-03/seen",
    traffic=("USE-*", "KVE-*"),
)
class PromptTokensWithoutCachedOnes(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens -= job.cached_tokens
        usage.total_tokens -= job.cached_tokens
        usage.prompt_tokens_details.cached_tokens = min(job.cached_tokens, usage.prompt_tokens)
        return usage


@mutant(
    "usage_of_several_resumed_ones_without_resume",
    kills=("RES-04/drawn", "RES-04/seen"),
    also="USE-05/seen",
    traffic="RES-*",
)
class UsageOfSeveralResumedOnesWithoutResume(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        handed_in = sum(len(choice.generated_token_ids) for choice in job.request.resume.choices)
        if has_several(job):
            usage.completion_tokens -= handed_in
            usage.total_tokens -= handed_in
        return usage


@mutant(
    "aborted_choices_are_not_counted",
    kills=("USE-05/ended", "USE-05/multiplexed", "USE-05/seen"),
    traffic=CHOICES,
)
class AbortedChoicesAreNotCounted(Reference):
    def cancelled(self, choice: Choice) -> pb.LLMEngineOutput:
        output, job = super().cancelled(choice), choice.job
        if has_several(job) and output.HasField("completion_usage"):
            usage = output.completion_usage
            usage.completion_tokens = len(job.choices[0].tokens)
            usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return output


# -- positions and the shape


@mutant(
    "positions_count_intervals", kills=("STR-06/drawn", "STR-06/seen"), also="RES-06/seen", traffic=GATHERED
)
class PositionsCountIntervals(Gathering):
    def gathered(self, job: Job, run: pb.LLMEngineOutput) -> pb.LLMEngineOutput:
        if interval_of(job) > 1:
            run.first_output_position //= interval_of(job)
        return run


@mutant(
    "positions_count_all_choices", kills=("STR-06/drawn", "STR-06/seen"), also="RES-06/seen", traffic=CHOICES
)
class PositionsCountAllChoices(Reference):
    async def outputs(self, job: Job) -> Outputs:
        sent = 0
        async for output in super().outputs(job):
            if has_several(job):
                output.first_output_position = sent
                sent += len(output.token_ids)
            yield output


@mutant(
    "positions_wrap_at_128",
    kills=("MUX-11", "STR-06/seen"),
    also="RES-06/seen",
    traffic=("MSG-03", "LIM-*", "MUX-11"),
)
class PositionsWrap(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            output.first_output_position %= 128
            yield output


@mutant(
    "second_terminal_of_choice_1",
    kills=("SEQ-02", "STR-02/seen"),
    also=("MUX-02/seen", "STR-03/seen"),
    traffic=CHOICES,
)
class SecondTerminalOfChoice1(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            yield output
            if output.finish_reason and output.index == 1:
                yield pb.LLMEngineOutput(index=1, finish_reason=output.finish_reason)


@mutant("empty_output_before_a_stop", kills="STR-08/seen", traffic="STP-*")
class EmptyOutputBeforeAStop(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if output.finish_reason == pb.FINISH_REASON_STOP:
                position = output.first_output_position
                yield pb.LLMEngineOutput(index=output.index, first_output_position=position)
            yield output


@mutant("life_on_every_message_of_choices", kills="STR-07/seen", traffic=CHOICES)
class LifeOnEveryMessageOfChoices(Reference):
    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        async for response in super().responses(job):
            if has_several(job):
                response.engine_lifetime_id = self.lifetime_id
            yield response


@mutant("long_answers_lose_their_id", kills="STR-07/seen", traffic=("MSG-03", "LIM-*"))
class LongAnswersLoseTheirId(Reference):
    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        number = 0
        async for response in super().responses(job):
            number += 1
            if number > 20:
                response.ClearField("request_id")
            yield response


# -- endings


@mutant("match_of_the_first_in_the_list", kills=("STP-03/drawn", "STP-03/seen"), traffic="STP-*")
class MatchOfTheFirstInTheList(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        if match and len(self.caller_stops(choice.job.request)) > 1:
            match.token_id = self.caller_stops(choice.job.request)[0]
        return reason, match


@mutant(
    "a_stop_at_max_tokens_is_length",
    kills=("STP-01/drawn", "STP-01/seen", "STP-04/drawn", "STP-04/seen"),
    traffic="INF-09/together",
)
class AStopAtMaxTokensIsLength(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        if len(choice.tokens) >= self.room(choice):
            return pb.FINISH_REASON_LENGTH, None
        return super().ending(choice, token)


@mutant("sixteen_stop_ids_and_no_more", kills=("STP-01/drawn", "STP-01/seen"), traffic=("STP-*", "INF-09"))
class SixteenStopIdsAndNoMore(Reference):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return super().caller_stops(request)[:16]


@mutant(
    "min_tokens_is_not_for_hidden_ids",
    kills=("LIM-06/drawn", "LIM-06/seen"),
    also="RES-05/seen",
    traffic="INF-09/together",
)
class MinTokensIsNotForHiddenIds(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        conditions = choice.job.request.stop_conditions
        if token in conditions.stop_token_ids_hidden and not conditions.ignore_eos:
            return pb.FINISH_REASON_EOS, None
        return super().ending(choice, token)


@mutant("a_match_beside_length", kills=("STP-03/drawn", "STP-03/seen"), traffic=("STP-*", "SEQ-*", "INF-09"))
class AMatchBesideLength(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        reason, match = super().ending(choice, token)
        stops = self.caller_stops(choice.job.request)
        if reason == pb.FINISH_REASON_LENGTH and stops:
            match = pb.StopMatch(token_id=stops[0])
        return reason, match


@mutant("equal_limits_end_as_stop", kills=("LIM-02/drawn", "LIM-02/seen"), traffic="INF-09/together")
class EqualLimitsEndAsStop(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        conditions = choice.job.request.stop_conditions
        reason, match = super().ending(choice, token)
        if reason == pb.FINISH_REASON_LENGTH and 0 < conditions.min_tokens == conditions.max_tokens:
            return pb.FINISH_REASON_STOP, pb.StopMatch(token_id=token)
        return reason, match


@mutant(
    "stops_of_the_second_choice_are_late",
    kills=("STP-01/drawn", "STP-01/repeating", "STP-01/seen", "STP-04/drawn", "STP-04/repeating"),
    also="STP-04/seen",
    traffic=CHOICES,
)
class StopsOfTheSecondChoiceAreLate(Reference):
    def stopped(self, choice: Choice, token: int) -> Ending:
        ended = super().stopped(choice, token)
        last = choice.job.choices[-1]
        return GOES_ON if has_several(choice.job) and choice is last else ended


# -- log-probabilities


@mutant("rows_shifted_inside_a_run", kills="LOG-02/seen", traffic=GATHERED)
class RowsShiftedInsideARun(Gathering):
    def gathered(self, job: Job, run: pb.LLMEngineOutput) -> pb.LLMEngineOutput:
        values = list(run.logprobs.token_logprobs)
        if len(values) > 1:
            run.logprobs.token_logprobs[:] = [*values[1:], values[0]]
        return run


@mutant("sums_begin_again_with_a_run", kills="LOG-10/seen", also="RES-07/seen", traffic=GATHERED)
class SumsBeginAgainWithARun(Gathering):
    def gathered(self, job: Job, run: pb.LLMEngineOutput) -> pb.LLMEngineOutput:
        if run.HasField("cum_log_probs") and interval_of(job) > 1:
            run.cum_log_probs = sum(run.logprobs.token_logprobs[-1:])
        return run


@mutant("rows_of_choices_are_short", kills="LOG-04/seen", traffic=CHOICES)
class RowsOfChoicesAreShort(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if has_several(job) and output.logprobs.top_n > 1:
                del output.logprobs.top_logprobs[-1]
            yield output


@mutant("seeded_answers_have_rows", kills="LOG-08/seen", traffic=("SAM-*", "SEQ-*"))
class SeededAnswersHaveRows(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if job.request.sampling_options.HasField("seed") and output.token_ids:
                output.logprobs.token_logprobs.extend([-1.0] * len(output.token_ids))
            yield output


@mutant("sums_of_long_answers_overflow", kills="LOG-10/seen", traffic="MSG-03")
class SumsOfLongAnswersOverflow(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if output.HasField("cum_log_probs"):
                output.cum_log_probs = max(output.cum_log_probs, -300.0)
            yield output
