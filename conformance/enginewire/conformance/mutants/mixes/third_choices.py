"""Servers that go wrong with a third choice or a finished one, or with probes, defaults or notes in a mix."""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.mixes.mixed_endings import KnowsItsStreams
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference

MIXED = ("INF-09/mixed",)


@mutant("third_choices_name_no_match", kills="STP-03/drawn")
class ThirdChoicesNameNoMatch(Reference):
    """Keeps two places for what ended."""

    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        return reason, None if choice.index > 1 else match


@mutant("third_choices_begin_at_one", kills="STR-06/drawn", also=("RES-06/seen",))
class ThirdChoicesBeginAtOne(Reference):
    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        output.first_output_position += choice.index > 1
        return output


@mutant("third_choices_have_no_end_of_their_own", kills="INF-09/mixed", also=("STP-04/seen",))
class ThirdChoicesHaveNoEndOfTheirOwn(Reference):
    """An end of sequence is looked for in two choices."""

    def stopped(self, choice: Choice, token: int) -> Ending:
        hidden = token in self.system_stops(choice.job.request)
        return GOES_ON if choice.index > 1 and hidden else super().stopped(choice, token)


@mutant("later_finished_choices_go_on", kills="RES-08/drawn")
class LaterFinishedChoicesGoOn(Reference):
    """Reads `finished` of the first choice only."""

    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        for choice in request.resume.choices:
            choice.finished = choice.finished and not choice.index
        return super().job(request_id, request, *others)


@mutant("usage_without_later_finished_choices", kills="RES-04/drawn")
class UsageWithoutLaterFinishedChoices(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        done = {choice.index for choice in job.request.resume.choices if choice.finished and choice.index}
        lost = sum(len(choice.tokens) for choice in job.choices if choice.index in done)
        usage.completion_tokens -= lost
        usage.total_tokens -= lost
        return usage


@mutant("resume_with_many_ids_goes_past_its_end", kills="RES-10/drawn", also=("RES-04/seen",))
class ResumeWithManyIdsGoesPastItsEnd(KnowsItsStreams):
    """Looks for the end of what was handed in where one id could have been it."""

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        request = choice.job.request
        is_long = len(self.system_stops(request)) + len(self.caller_stops(request)) > 2
        return None if is_long and not self.is_multiplexed(choice.job) else super().ended_before(choice)


@mutant("probes_do_not_stop", kills="INF-09/mixed", also=("RES-10/seen", "STP-01/seen", "STP-04/seen"))
class ProbesDoNotStop(Reference):
    """They were one token long when this was written."""

    def stopped(self, choice: Choice, token: int) -> Ending:
        return GOES_ON if choice.job.request.is_probe else super().stopped(choice, token)


@mutant("probes_with_alternatives_are_drawn", kills="INF-09/mixed", also=("LOG-05/seen",))
class ProbesWithAlternativesAreDrawn(Reference):
    """Whatever their temperature is, when log-probabilities are asked for as well."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        token = super().next_token(choice, logits)
        request = choice.job.request
        is_hot = request.is_probe and request.output_options.HasField("logprobs")
        return (token + 1) % len(logits) if is_hot else token


@mutant("whole_nucleus_and_no_filter_disagree", kills="INF-09/mixed")
class WholeNucleusAndNoFilterDisagree(Reference):
    """Takes `top_p` of 1 for the best token alone, beside a `top_k` that is spelled out."""

    def top_k(self, options: pb.SamplingOptions) -> int:
        is_spelled_out = options.HasField("top_k") and options.HasField("top_p") and options.top_p == 1
        return 1 if is_spelled_out else super().top_k(options)


@mutant("notes_to_several_come_last", kills="EVT-03/seen", also=("STR-07/seen",), traffic=MIXED)
class NotesToSeveralComeLast(Reference):
    """What was asked to be told beside three choices is told when they have ended."""

    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        held, several = [], len(job.choices) > 2
        async for response in super().responses(job):
            if several and response.HasField("engine_event"):
                held.append(response)
            else:
                yield response
        for response in held:
            yield response


@mutant("notes_to_probes_are_forgotten", kills="EVT-01/seen", traffic=MIXED)
class NotesToProbesAreForgotten(Reference):
    """Nobody asks a probe for more than whether it works, it thinks."""

    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        job = super().job(request_id, request, *others)
        job.events = [] if request.is_probe else job.events
        return job
