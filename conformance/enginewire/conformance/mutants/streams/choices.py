"""Servers that get several choices of one request wrong."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from statistics import fmean

from enginewire import v1 as pb
from enginewire.conformance.mutants import each_changed, mutant
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import CAPABILITIES, Settings, without

Outputs = AsyncIterator[pb.LLMEngineOutput]

MUCH = 65536
"""Blocks: more long choices fit in than there are slots."""


@mutant("best_of_in_any_order", kills="INF-09/best-first")
class BestOfInAnyOrder(Reference):
    """Returns the first of its candidates, as they come."""

    settings = replace(Settings(), capabilities=(*CAPABILITIES, "best_of"))


@mutant("best_of_by_the_mean", kills="INF-09/best-first")
class BestOfByTheMean(Reference):
    """Ranks by what a token of each candidate has on average: a short one is not the best for being short."""

    settings = replace(Settings(), capabilities=(*CAPABILITIES, "best_of"))

    async def outputs(self, job: Job) -> Outputs:
        request = job.request
        if not (request.sampling_options.HasField("best_of") and request.output_options.HasField("logprobs")):
            async for output in super().outputs(job):
                yield output
            return
        outputs = [output async for output in super().outputs(job)]
        ranked = sorted({output.index for output in outputs}, key=lambda index: -_mean(outputs, index))
        places = {index: place for place, index in enumerate(ranked)}
        for output in outputs:
            output.index = places[output.index]
            yield output


def _mean(outputs: list[pb.LLMEngineOutput], index: int) -> float:
    return fmean(
        value for output in outputs if output.index == index for value in output.logprobs.token_logprobs
    )


@mutant("beams_are_draws", kills="INF-09/beams")
class BeamsAreDraws(Reference):
    """Answers that differ, and not because they are the best."""

    settings = replace(Settings(), capabilities=(*CAPABILITIES, "beam_search"))


@each_changed(
    Reference.outputs,
    "missing_index",
    kills="SEQ-01",
    also=("MUX-08/seen", "STR-02/seen", "STR-03/seen", "STR-06/seen"),
)
def missing_index(output: pb.LLMEngineOutput) -> None:
    output.index = 0


@mutant("index_from_one", kills="SEQ-01", also=("RES-05/seen", "RES-06/seen", "STR-06/seen"))
class IndexFromOne(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            output.index += len(job.choices) > 1
            yield output


@each_changed(
    Reference.outputs,
    "second_choice_no_terminal",
    kills="SEQ-02",
    also=("MUX-08/seen", "STP-03/seen", "STR-02/seen", "STR-08/seen", "USE-04/seen"),
)
def second_choice_no_terminal(output: pb.LLMEngineOutput) -> None:
    if output.index == 1:
        output.ClearField("finish_reason")


@mutant("stopped_choice_goes_on", kills="SEQ-02", also=("MUX-02/seen", "STR-03/seen"))
class StoppedChoiceGoesOn(Reference):
    """A choice that a stop ended is generated on until its siblings have ended."""

    async def outputs(self, job: Job) -> Outputs:
        stopped: set[int] = set()
        async for output in super().outputs(job):
            yield output
            for index in stopped - {output.index}:
                yield pb.LLMEngineOutput(index=index, token_ids=output.token_ids)
            if output.finish_reason == pb.FINISH_REASON_STOP:
                stopped.add(output.index)


@mutant(
    "abort_ends_choices_again", kills="SEQ-02/aborted", also=("STR-02/seen", "STR-03/seen", "USE-04/seen")
)
class AbortEndsChoicesAgain(Reference):
    """Those that have ended by themselves too."""

    def abort(self, job: Job) -> None:
        for choice in job.choices:
            if choice.is_finished and len(choice.tokens) > choice.handed_in:
                self.send(
                    job, pb.LLMEngineOutput(index=choice.index, finish_reason=pb.FINISH_REASON_CANCELLED)
                )
        super().abort(job)


@mutant("usage_prompt_times_n", kills="SEQ-03", also="USE-05/seen")
class UsagePromptTimesN(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens *= len(job.choices)
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return usage


@mutant("usage_of_one_choice", kills="SEQ-03", also=("RES-04/seen", "USE-05/seen"))
class UsageOfOneChoice(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.completion_tokens = len(job.choices[0].tokens)
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return usage


@mutant("same_choice_n_times", kills="SEQ-04")
class SameChoiceNTimes(Reference):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        first, place = choice.job.choices[0].tokens, len(choice.tokens)
        return first[place] if choice.index and len(first) > place else super().next_token(choice, logits)


@mutant("later_choices_unseeded", kills="SEQ-04/seeded")
class LaterChoicesUnseeded(Reference):
    def draw(self, choice: Choice) -> float:
        return secrets.randbits(53) / 2**53 if choice.index else super().draw(choice)


@mutant("abort_forgets_later_choices", kills="SEQ-05", also="STR-02/seen")
class AbortForgetsLaterChoices(Reference):
    """Of more than two choices, the first two have their terminals."""

    def abort(self, job: Job) -> None:
        for choice in job.open_choices[:2]:
            self.send(job, self.cancelled(choice))
        self.finish(job)


@mutant("siblings_kept_until_the_next", kills=("SEQ-05/cancelled", "SEQ-05/failed"))
class SiblingsKeptUntilTheNext(Reference):
    """What several open choices held is freed only when the next request comes."""

    unfreed = 0

    def freed_blocks(self, job: Job) -> int:
        freed = super().freed_blocks(job)
        if len(job.open_choices) < 2:
            return freed
        self.unfreed += freed
        return 0

    def admit(self, job: Job) -> None:
        self.counters.kv_blocks_used -= self.unfreed
        self.unfreed = 0
        super().admit(job)


class _HaveTheirTurn(Reference):
    """What waited for a slot when its request ended begins when one is free."""

    settings = replace(Settings(), total_blocks=MUCH)

    def without_a_slot(self, *jobs: Job) -> list[Job]:
        """What of live ones waits for a slot, as jobs of their own."""
        left = {
            job.request_id: [replace(choice) for choice in job.open_choices[self.settings.max_num_seqs :]]
            for job in jobs
            if self.live.get(job.request_id) is job
        }
        return [
            replace(job, choices=left[job.request_id], is_running=False, items=asyncio.Queue())
            for job in jobs
            if left.get(job.request_id)
        ]


@mutant("cancelled_choices_have_their_turn", kills="SEQ-05/more-than-slots")
class CancelledChoicesHaveTheirTurn(_HaveTheirTurn):
    """Whatever ends it."""

    def release(self, job: Job) -> None:
        left = self.without_a_slot(job)
        super().release(job)
        for each in left:
            self.admit(each)


@mutant("aborted_choices_have_their_turn", kills="SEQ-05/more-than-slots")
class AbortedChoicesHaveTheirTurn(_HaveTheirTurn):
    """By its id."""

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        left = self.without_a_slot(*filter(None, [self.live.get(request_id)]))
        outcome = super().abort_id(request_id)
        for each in left:
            self.admit(each)
        return outcome


@mutant("choices_of_aborted_handles_have_their_turn", kills="SEQ-05/more-than-slots-multiplexed")
class ChoicesOfAbortedHandlesHaveTheirTurn(_HaveTheirTurn):
    """By its handle."""

    def take(self, frame: pb.GenerateMultiplexedRequest, stream: Multiplex, call: Call) -> None:
        aborted = [stream.live[handle] for handle in frame.abort.handles if handle in stream.live]
        left = self.without_a_slot(*aborted)
        super().take(frame, stream, call)
        for each in left:
            self.admit(each)


class _OneChoice(Reference):
    """Takes some numbers of choices for 1."""

    def is_lowered(self, number: int) -> bool:
        return False

    def validate(self, request: pb.GenerateRequest) -> None:
        options = request.request.sampling_options
        if options.HasField("n") and self.is_lowered(options.n):
            options.n = 1
        super().validate(request)


@mutant("n_silently_1", kills="SEQ-06")
class NSilently1(_OneChoice):
    def is_lowered(self, number: int) -> bool:
        return number == 0


@mutant("n_clamped_silently", kills="SEQ-06", also="STR-02/seen")
class NClampedSilently(_OneChoice):
    def is_lowered(self, number: int) -> bool:
        return number > self.config.limits.max_n


@mutant(
    "n_lowered_without_capability",
    kills=("SEQ-06", "ERR-17/multiple_choices"),
    also=("STR-02/seen", "MUX-08/seen"),
)
class NLoweredWithoutCapability(_OneChoice):
    settings = without("multiple_choices")

    def is_lowered(self, number: int) -> bool:
        return number == 2


@mutant("random_numbers_for_few_choices", kills="SEQ-04/many")
class RandomNumbersForFewChoices(Reference):
    """The numbers of the first four come again."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        first, place = choice.job.choices[choice.index % 4].tokens, len(choice.tokens)
        is_late = choice.index > 3 and len(first) > place
        return first[place] if is_late else super().next_token(choice, logits)


@mutant("a_choice_fails_alone", kills="SEQ-05/failed")
class AChoiceFailsAlone(Reference):
    """The caller gets the status, and the others go on for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self._left: list[Job] = []

    def fail(self, job: Job, failure: Refusal) -> None:
        others = job.open_choices[1:] if failure.detail.reason == pb.ERROR_REASON_INVALID_REQUEST else []
        super().fail(job, failure)
        if others:
            left = replace(job, choices=others, is_running=False, items=asyncio.Queue())
            super().admit(left)
            self._left.append(left)

    def admit(self, job: Job) -> None:
        # To leave the checks that follow in peace.
        while self._left:
            self.release(self._left.pop())
        super().admit(job)
