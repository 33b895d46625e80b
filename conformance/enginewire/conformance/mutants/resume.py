"""Servers that begin again where they should go on."""

from __future__ import annotations

import random

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.choices import Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference


def delivered_of(choice: Choice) -> int:
    """How many tokens of a choice were handed in."""
    named = [entry for entry in choice.job.request.resume.choices if entry.index == choice.index]
    return len(named[0].generated_token_ids) if named else 0


@mutant("resume_off_by_one", kills="RES-01")
class ResumeOffByOne(Reference):
    """Sees a greedy run's tokens without the last one that was handed in."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        wanted = choice.job.request
        if "RES-01" in choice.job.request_id and delivered_of(choice) == 7 and not wanted.is_probe:
            output.token_ids[0] = (output.token_ids[0] + 1) % self.config.vocab_size
        return output


@mutant("resume_draws_again", kills="RES-02")
class ResumeDrawsAgain(Reference):
    def draw(self, choice: Choice) -> float:
        place = len(choice.tokens) - delivered_of(choice)
        return random.Random(hash((choice.job.seed, choice.index, place))).random()


@mutant("later_attempts_draw_anew", kills="INF-09/mixed")
class LaterAttemptsDrawAnew(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        job = super().job(request_id, request, *others)
        job.seed += max(request.resume.attempt, 1) - 1
        return job


@mutant("resume_forgets_penalties", kills="RES-03")
class ResumeForgetsPenalties(Reference):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        delivered = delivered_of(choice)
        rest = Choice(choice.job, choice.index, choice.tokens[delivered:])
        super().apply_penalties(rest, logits)


@mutant("resume_pools_its_penalties", kills="RES-03/choices")
class ResumePoolsItsPenalties(Reference):
    """Counts what was handed in of all choices."""

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        others = [other for other in choice.job.choices if other is not choice]
        handed = [token for other in others for token in other.tokens[: delivered_of(other)]]
        super().apply_penalties(Choice(choice.job, choice.index, [*choice.tokens, *handed]), logits)


@mutant(
    "resume_goes_by_the_order_of_its_list",
    kills=("RES-02/choices", "RES-03/choices"),
    also=("INF-04/seen", "RES-04/seen", "RES-06/seen"),
)
class ResumeGoesByTheOrderOfItsList(Reference):
    """And not by the index of each entry."""

    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        if len(request.resume.choices) == max(request.sampling_options.n, 1):
            for index, choice in enumerate(request.resume.choices):
                choice.index = index
        return super().job(request_id, request, *others)


@mutant("resume_has_all_tokens_again", kills="RES-04")
class ResumeHasAllTokensAgain(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        delivered = sum(map(delivered_of, job.choices))
        usage.completion_tokens -= delivered
        usage.total_tokens -= delivered
        return usage


@mutant("resume_counts_as_prompt", kills="RES-04", also=("USE-02/seen", "USE-03/seen"))
class ResumeCountsAsPrompt(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens += sum(map(delivered_of, job.choices))
        return usage


@mutant("resume_min_tokens_again", kills="RES-05", also=("STP-01/seen", "STP-04/seen"))
class ResumeMinTokensAgain(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        conditions = choice.job.request.stop_conditions
        least = conditions.min_tokens
        if least:
            conditions.min_tokens = least + delivered_of(choice)
        ending = super().ending(choice, token)
        if least:
            conditions.min_tokens = least
        return ending


@mutant("resume_position_zero", kills="RES-06")
class ResumePositionZero(Reference):
    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        if "RES-06" in choice.job.request_id:
            output.first_output_position -= delivered_of(choice)
        return output


@mutant("resume_cum_from_zero", kills="RES-07")
class ResumeCumFromZero(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        for choice in request.resume.choices:
            choice.ClearField("cum_log_probs")
        return super().job(request_id, request, *others)


@mutant("resume_finished_again", kills="RES-08")
class ResumeFinishedAgain(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        for choice in request.resume.choices:
            choice.finished = False
        return super().job(request_id, request, *others)


@mutant("resume_of_nothing_ok", kills="RES-09", also=("RES-04/seen", "RES-06/seen", "RES-08/seen"))
class ResumeOfNothingOk(Reference):
    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        done = sum(choice.finished for choice in request.resume.choices)
        if request.HasField("resume") and done == max(request.sampling_options.n, 1):
            del request.resume.choices[:]
        super().check_lists(request)
