"""Servers that begin again where they should go on."""

from __future__ import annotations

import random
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.choices import GOES_ON, Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.stream import num_choices


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


@mutant("later_attempts_draw_anew", kills="RES-02")
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
        if len(request.resume.choices) == num_choices(request):
            for index, choice in enumerate(request.resume.choices):
                choice.index = index
        return super().job(request_id, request, *others)


@mutant("choices_are_numbered_anew_behind_a_finished_one", kills="RES-02/choices")
class ChoicesAreNumberedAnewBehindAFinishedOne(Reference):
    def draw(self, choice: Choice) -> float:
        finished = [each.index for each in choice.job.request.resume.choices if each.finished]
        place = choice.index - sum(index < choice.index for index in finished)
        return super().draw(replace(choice, index=place))


@mutant("resume_has_all_tokens_again", kills="RES-04", also="USE-05/seen")
class ResumeHasAllTokensAgain(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        delivered = sum(map(delivered_of, job.choices))
        usage.completion_tokens -= delivered
        usage.total_tokens -= delivered
        return usage


@mutant("resume_counts_as_prompt", kills="RES-04", also=("USE-02/seen", "USE-03/seen", "USE-05/seen"))
class ResumeCountsAsPrompt(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens += sum(map(delivered_of, job.choices))
        return usage


@mutant("resume_min_tokens_again", kills="RES-05", also=("RES-10/seen", "STP-01/seen", "STP-04/seen"))
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


@mutant("resume_past_its_end", kills="RES-10", also=("RES-04/seen",))
class ResumePastItsEnd(Reference):
    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        return None


@mutant("resume_past_its_last_token", kills="RES-10", also=("RES-04/seen",))
class ResumePastItsLastToken(Reference):
    """Sees a stop id that was handed in, and not that max_tokens is reached."""

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        is_full = len(choice.tokens) >= self.room(choice)
        stopped = bool(choice.tokens) and self.stopped(choice, choice.tokens[-1]) != GOES_ON
        return None if is_full and not stopped else super().ended_before(choice)


@mutant("resume_past_a_stop_id", kills="RES-10")
class ResumePastAStopId(Reference):
    """Counts what was handed in, and does not read it."""

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        is_full = len(choice.tokens) >= self.room(choice)
        return super().ended_before(choice) if is_full else None


@mutant("resume_past_a_hidden_stop_id", kills="RES-10", also=("RES-04/seen",))
class ResumePastAHiddenStopId(Reference):
    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        hidden = choice.job.request.stop_conditions.stop_token_ids_hidden
        is_hidden = not set(hidden).isdisjoint(choice.tokens[-1:])
        return None if is_hidden else super().ended_before(choice)


@mutant("resume_ends_at_any_token", kills=("RES-10", "RES-05/drawn"), also="STP-02/seen")
class ResumeEndsAtAnyToken(Reference):
    """Looks at all tokens that are handed in, not at the last one alone."""

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        output = super().ended_before(choice)
        if output or len(choice.tokens) > choice.handed_in:
            return output
        for token in choice.tokens:
            if (ending := self.ending(choice, token)) != GOES_ON:
                output = pb.LLMEngineOutput(index=choice.index, first_output_position=choice.handed_in)
                self.end(choice, output, *ending)
                break
        return output


@mutant("resume_that_has_ended_is_refused", kills="RES-10")
class ResumeThatHasEndedIsRefused(Reference):
    """As if there were nothing to do: the terminal output is what is missing."""

    def admit(self, job: Job) -> None:
        if "RES-10" in job.request_id and all(map(self.has_ended, job.choices)):
            raise invalid("resume.choices", "have all ended", len(job.choices), "one that goes on")
        super().admit(job)

    def has_ended(self, choice: Choice) -> bool:
        return choice.handed_in > 0 and self.ending(choice, choice.tokens[-1]) != GOES_ON


@mutant("resume_ends_without_a_match", kills="RES-10", also=("STP-03/seen",))
class ResumeEndsWithoutAMatch(Reference):
    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        output = super().ended_before(choice)
        if output:
            output.ClearField("stop_match")
        return output


@mutant("resume_ends_as_length", kills="RES-10", also=("STP-01/seen", "STP-04/seen", "INF-04/seen"))
class ResumeEndsAsLength(Reference):
    """Whatever its last token was."""

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        output = super().ended_before(choice)
        if output:
            output.finish_reason = pb.FINISH_REASON_LENGTH
            output.ClearField("stop_match")
        return output


@mutant("resume_ends_below_min_tokens", kills="RES-10", also=("RES-05/seen",))
class ResumeEndsBelowMinTokens(Reference):
    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        conditions = choice.job.request.stop_conditions
        least, conditions.min_tokens = conditions.min_tokens, 0
        output = super().ended_before(choice)
        conditions.min_tokens = least
        return output


@mutant("later_choices_go_past_their_end", kills="RES-10/choices", also=("RES-04/seen",))
class LaterChoicesGoPastTheirEnd(Reference):
    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        return None if choice.index else super().ended_before(choice)


@mutant("handles_go_past_their_end", kills=("RES-10/multiplexed", "MUX-01/drawn"), also=("RES-04/seen",))
class HandlesGoPastTheirEnd(Reference):
    """What comes over a stream of many is not looked at before it begins."""

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        job = super().submitted(submit, call)
        for choice in job.choices:
            choice.handed_in = 0
        return job


@mutant("resume_of_too_many_ok", kills="RES-09", also=("RES-04/seen", "RES-10/seen"))
class ResumeOfTooManyOk(Reference):
    """Keeps those that fit."""

    def check_handed_in(self, request: pb.PreprocessedRequest) -> None:
        """Nothing is looked at."""


@mutant("resume_of_nothing_ok", kills="RES-09", also=("RES-04/seen", "RES-06/seen", "RES-08/seen"))
class ResumeOfNothingOk(Reference):
    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        done = sum(choice.finished for choice in request.resume.choices)
        if request.HasField("resume") and done == num_choices(request):
            del request.resume.choices[:]
        super().check_lists(request)


@mutant("sums_go_on_from_the_first", kills="RES-07/choices")
class SumsGoOnFromTheFirst(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        job = super().job(request_id, request, *others)
        for choice in job.choices:
            choice.cum_log_probs = job.choices[0].cum_log_probs
        return job


@mutant("bad_words_begin_behind_the_cut", kills="SAM-14/resumed")
class BadWordsBeginBehindTheCut(Reference):
    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        before = choice.tokens
        if choice.job.request.sampling_options.bad_words_token_ids:
            choice.tokens = before[choice.handed_in :]
        super().apply_masks(choice, logits)
        choice.tokens = before


@mutant("the_first_that_has_ended_is_seen", kills="RES-10/choices", also=("RES-04/seen",))
class TheFirstThatHasEndedIsSeen(Reference):
    """Of several whose last tokens were handed in."""

    def ended_before(self, choice: Choice) -> pb.LLMEngineOutput | None:
        first = next((each for each in choice.job.choices if each.handed_in), choice)
        return super().ended_before(choice) if choice is first else None


@mutant("aborts_end_what_was_finished", kills="RES-08")
class AbortsEndWhatWasFinished(Reference):
    def abort(self, job: Job) -> None:
        for each in job.request.resume.choices:
            if each.finished:
                self.send(job, self.cancelled(job.choices[each.index]))
        super().abort(job)


@mutant("finished_needs_tokens", kills="RES-08")
class FinishedNeedsTokens(Reference):
    def job(self, request_id: str, request: pb.PreprocessedRequest, *others: float) -> Job:
        for choice in request.resume.choices:
            choice.finished = choice.finished and bool(choice.generated_token_ids)
        return super().job(request_id, request, *others)
