"""Servers that do one thing right in one shape of a request, and wrong in another: `checks.shapes`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.streams.resume import delivered_of
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.choices import Ending
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call


def has_several(job: Job) -> bool:
    """More than one choice."""
    return len(job.choices) > 1


class KnowsItsStreams(Reference):
    """Does something else for what came over a multiplexed stream."""

    def __init__(self) -> None:
        super().__init__()
        self.multiplexed: set[str] = set()

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        self.multiplexed.add(submit.generate.request_id)
        return super().submitted(submit, call)

    def is_multiplexed(self, job: Job) -> bool:
        """It came over a multiplexed stream."""
        return job.request_id in self.multiplexed


# -- several choices


@mutant("events_of_one_choice_only", kills="EVT-01/choices")
class EventsOfOneChoiceOnly(Reference):
    def due_events(self, job: Job) -> list[pb.EngineEvent]:
        events = super().due_events(job)
        return [] if has_several(job) else events


@mutant("event_after_the_end_of_choices", kills="EVT-03/choices", also="EVT-01/seen")
class EventAfterTheEndOfChoices(Reference):
    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        events = self.due_events(job) if has_several(job) else []
        async for response in super().responses(job):
            yield response
        for event in events:
            yield pb.GenerateResponse(engine_event=event, request_id=job.request_id)


@mutant("choices_past_the_cache", kills="USE-06/choices")
class ChoicesPastTheCache(Reference):
    def look_up(self, job: Job) -> int:
        return 0 if has_several(job) else super().look_up(job)


@mutant("full_window_of_choices_is_an_error", kills="LIM-08/choices")
class FullWindowOfChoicesIsAnError(Reference):
    def ending(self, choice: Choice, token: int) -> Ending:
        reason, match = super().ending(choice, token)
        is_bounded = choice.job.request.stop_conditions.HasField("max_tokens")
        if reason == pb.FINISH_REASON_LENGTH and has_several(choice.job) and not is_bounded:
            return pb.FINISH_REASON_ERROR, match
        return reason, match


@mutant("more_than_fits_is_refused_for_choices", kills="LIM-09/choices")
class MoreThanFitsIsRefusedForChoices(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        super().validate(request)
        body = request.request
        asked = len(body.token_ids) + body.stop_conditions.max_tokens
        if body.sampling_options.n > 1 and asked > self.config.context_length:
            field, reason = "stop_conditions.max_tokens", pb.ERROR_REASON_CONTEXT_EXCEEDED
            raise Refusal(reason, f"{field}: does not fit the window for all choices", field=field)


@mutant("no_prompt_rows_for_choices", kills="LOG-07/choices")
class NoPromptRowsForChoices(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if has_several(choice.job):
            output.ClearField("prompt_logprobs")


@mutant("randomness_by_slot", kills="SEQ-04/more-than-slots")
class RandomnessBySlot(Reference):
    def draw(self, choice: Choice) -> float:
        slot = choice.index % self.settings.max_num_seqs
        return random.Random(hash((choice.job.seed, slot, len(choice.tokens)))).random()


# -- over a multiplexed stream


@mutant("mux_past_the_cache", kills="USE-06/multiplexed")
class MuxPastTheCache(KnowsItsStreams):
    def look_up(self, job: Job) -> int:
        return 0 if self.is_multiplexed(job) else super().look_up(job)


@mutant("mux_no_prompt_rows", kills="LOG-07/multiplexed")
class MuxNoPromptRows(KnowsItsStreams):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if self.is_multiplexed(choice.job):
            output.ClearField("prompt_logprobs")


@mutant("mux_aborted_usage_of_one_choice", kills="USE-05/multiplexed")
class MuxAbortedUsageOfOneChoice(KnowsItsStreams):
    def cancelled(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().cancelled(choice)
        is_concerned = self.is_multiplexed(choice.job) and has_several(choice.job)
        if is_concerned and output.HasField("completion_usage"):
            usage = output.completion_usage
            usage.completion_tokens = len(choice.tokens)
            usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return output


@mutant("mux_resume_draws_again", kills="RES-02/multiplexed")
class MuxResumeDrawsAgain(KnowsItsStreams):
    def draw(self, choice: Choice) -> float:
        if not self.is_multiplexed(choice.job):
            return super().draw(choice)
        place = len(choice.tokens) - delivered_of(choice)
        return random.Random(hash((choice.job.seed, choice.index, place))).random()


@mutant("mux_resume_forgets_penalties", kills="RES-03/multiplexed")
class MuxResumeForgetsPenalties(KnowsItsStreams):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        place = delivered_of(choice) if self.is_multiplexed(choice.job) else 0
        super().apply_penalties(Choice(choice.job, choice.index, choice.tokens[place:]), logits)


@mutant("mux_resume_sums_from_zero", kills="RES-07/multiplexed")
class MuxResumeSumsFromZero(KnowsItsStreams):
    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = float("inf")) -> Job:
        job = super().job(request_id, request, deadline)
        if self.is_multiplexed(job):
            for choice in job.choices:
                choice.cum_log_probs = 0.0
        return job


@mutant("mux_accepted_with_its_first_token", kills="STR-12/multiplexed")
class MuxAcceptedWithItsFirstToken(Reference):
    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        """Not yet."""

    async def pump(self, stream: Multiplex, handle: int, job: Job) -> None:
        first = await job.items.get()
        super().say_accepted(
            stream, pb.Submit(handle=handle, generate=pb.GenerateRequest(request_id=job.request_id))
        )
        rest = job.items
        job.items = type(rest)()
        job.items.put_nowait(first)
        while not rest.empty():
            job.items.put_nowait(rest.get_nowait())
        await super().pump(stream, handle, job)


@mutant("positions_begin_again_behind_events", kills="RES-06", also=("RES-06/seen", "STR-06/seen"))
class PositionsBeginAgainBehindEvents(KnowsItsStreams):
    """In the frame that has them."""

    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        is_first = self.is_multiplexed(job) and bool(job.events)
        async for output in super().outputs(job):
            if is_first:
                output.first_output_position = 0
            is_first = False
            yield output
