"""Servers that lose memory, or treat requests wrongly whose memory they take."""

from __future__ import annotations

import random
from collections import Counter

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities import grammar
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Choice, Item, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.preempting import Preempting


class _Remembers(Preempting):
    """How many tokens each choice had when its memory was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.had: dict[Choice, int] = {}

    def preempt(self, job: Job) -> None:
        self.had |= {choice: len(choice.tokens) for choice in job.choices}
        super().preempt(job)

    def gave_up(self, job: Job) -> bool:
        """Whether it waits for memory."""
        return not job.is_running and job.choices[0] in self.had


class _SeedsBeginAgain(_Remembers):
    """With the position at which a choice lost its memory."""

    def draw(self, choice: Choice) -> float:
        place = len(choice.tokens) - self.forgotten(choice)
        return random.Random(hash((choice.job.seed, choice.index, place))).random()

    def forgotten(self, choice: Choice) -> int:
        """How many of its tokens do not count."""
        return self.had.get(choice, 0)


@mutant("seeds_begin_again_with_the_memory", kills="CON-02/preempted")
class SeedsBeginAgainWithTheMemory(_SeedsBeginAgain):
    pass


@mutant("seeds_of_later_choices_begin_again_with_the_memory", kills="CON-02/preempted")
class SeedsOfLaterChoicesBeginAgainWithTheMemory(_SeedsBeginAgain):
    def forgotten(self, choice: Choice) -> int:
        return super().forgotten(choice) if choice.index else 0


@mutant("gathered_tokens_go_with_the_memory", kills="CON-02/preempted", also="STR-06/seen")
class GatheredTokensGoWithTheMemory(Preempting):
    def __init__(self) -> None:
        super().__init__()
        self.losing: set[Job] = set()

    def preempt(self, job: Job) -> None:
        if job.request.output_options.stream_interval > 1:
            self.losing.add(job)
        super().preempt(job)

    def send(self, job: Job, item: Item) -> None:
        is_lost = job in self.losing and isinstance(item, pb.LLMEngineOutput) and not item.finish_reason
        self.losing.discard(job)
        if not is_lost:
            super().send(job, item)


@mutant("seeds_begin_again_behind_a_cached_prompt", kills="CON-02/preempted")
class SeedsBeginAgainBehindACachedPrompt(_SeedsBeginAgain):
    """Its blocks are found when it has memory again: as if it had just come."""

    def __init__(self) -> None:
        super().__init__()
        self.found_again: set[Job] = set()

    def look_up(self, job: Job) -> int:
        if Reference.look_up(self, job):
            self.found_again.add(job)
        return super().look_up(job)

    def forgotten(self, choice: Choice) -> int:
        return super().forgotten(choice) if choice.job in self.found_again else 0


@mutant("seeds_begin_again_when_memory_is_lost_twice", kills="CON-02/preempted")
class SeedsBeginAgainWhenMemoryIsLostTwice(_SeedsBeginAgain):
    def preempt(self, job: Job) -> None:
        is_first = job.choices[0] not in self.had
        super().preempt(job)
        if is_first:
            self.had |= dict.fromkeys(job.choices, 0)


@mutant("penalties_begin_again_with_the_memory", kills=("CON-02/preempted", "SAM-18/preempted"))
class PenaltiesBeginAgainWithTheMemory(_Remembers):
    def penalised(self, choice: Choice) -> Counter[int]:
        return Counter(choice.tokens[self.had.get(choice, 0) :])


@mutant("presence_begins_again_with_the_memory", kills="SAM-18/preempted")
class PresenceBeginsAgainWithTheMemory(_Remembers):
    """The counts are kept."""

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        had = self.had.get(choice, 0)
        for token in {*choice.tokens[:had]} - {*choice.tokens[had:]}:
            logits[token] += choice.job.request.sampling_options.presence_penalty


@mutant("penalties_count_the_prompt_after_the_memory", kills=("CON-02/preempted", "SAM-18/preempted"))
class PenaltiesCountThePromptAfterTheMemory(_Remembers):
    """All that has to be computed again is counted."""

    def penalised(self, choice: Choice) -> Counter[int]:
        prompt = choice.job.request.token_ids if choice in self.had else ()
        return Counter([*prompt, *choice.tokens])


@mutant("guides_begin_again_with_the_memory", kills="GDE-02/preempted")
class GuidesBeginAgainWithTheMemory(_Remembers):
    def allowed(self, choice: Choice, guide: grammar.Guide) -> set[int]:
        had = self.had.get(choice, 0)
        before, choice.tokens = choice.tokens, choice.tokens[had:]
        allowed = super().allowed(choice, guide)
        choice.tokens = before
        return allowed


@mutant("without_memory_is_not_waiting", kills="INF-13/preempted")
class WithoutMemoryIsNotWaiting(_Remembers):
    def load(self) -> pb.Load:
        load = super().load()
        load.waiting -= sum(map(self.gave_up, self.waiting))
        return load


@mutant("what_is_computed_again_counts_as_cached", kills="USE-06/preempted")
class WhatIsComputedAgainCountsAsCached(_Remembers):
    def look_up(self, job: Job) -> int:
        found = super().look_up(job)
        return len(self.block_keys(job)) * self.settings.block_size if job.choices[0] in self.had else found


@mutant("aborts_pass_over_those_without_memory", kills="ABO-01/preempted")
class AbortsPassOverThoseWithoutMemory(_Remembers):
    """They go on with what was aborted later."""

    def abort(self, job: Job) -> None:
        if not self.gave_up(job):
            super().abort(job)


@mutant("drains_refuse_those_without_memory", kills="DRN-01/preempted")
class DrainsRefuseThoseWithoutMemory(_Remembers):
    """As if they had never begun."""

    def begin_drain(self, request: pb.DrainRequest) -> None:
        super().begin_drain(request)
        for job in [job for job in self.waiting if self.gave_up(job)]:
            self.fail(job, Refusal(pb.ERROR_REASON_DRAINING, "the server is draining"))


@mutant("who_loses_its_memory_says_nothing", kills="STR-08/preempted")
class WhoLosesItsMemorySaysNothing(Preempting):
    """In an output."""

    def preempt(self, job: Job) -> None:
        choice = job.choices[0]
        self.send(job, pb.LLMEngineOutput(first_output_position=len(choice.tokens)))
        super().preempt(job)


@mutant("who_gets_memory_back_is_accepted_again", kills="MUX-03/preempted")
class WhoGetsMemoryBackIsAcceptedAgain(Preempting):
    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, tuple[Multiplex, pb.Submit]] = {}

    def say_accepted(self, stream: Multiplex, submit: pb.Submit) -> None:
        self.streams[submit.generate.request_id] = stream, submit
        super().say_accepted(stream, submit)

    def preempt(self, job: Job) -> None:
        super().preempt(job)
        if job.request_id in self.streams:
            self.say_accepted(*self.streams[job.request_id])


@mutant("masks_go_with_the_memory", kills="SAM-13/preempted")
class MasksGoWithTheMemory(_Remembers):
    """Bad words are kept."""

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        before = list(logits)
        super().apply_masks(choice, logits)
        if choice in self.had:
            bad = {word.token_ids[-1] for word in choice.job.request.sampling_options.bad_words_token_ids}
            logits[:] = [
                value if token in bad else own
                for token, (value, own) in enumerate(zip(logits, before, strict=True))
            ]


@mutant("bad_words_begin_again_with_the_memory", kills="SAM-14/preempted")
class BadWordsBeginAgainWithTheMemory(_Remembers):
    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        before, choice.tokens = choice.tokens, choice.tokens[self.had.get(choice, 0) :]
        super().apply_masks(choice, logits)
        choice.tokens = before


@mutant("who_loses_its_memory_is_told", kills="EVT-02/preempted")
class WhoLosesItsMemoryIsTold(Preempting):
    """By an event, if it has asked for any."""

    def preempt(self, job: Job) -> None:
        super().preempt(job)
        if job.request.annotations:
            job.events.append(pb.EngineEvent(event="preempted"))


@mutant("sums_begin_again_with_the_memory", kills="LOG-10/preempted")
class SumsBeginAgainWithTheMemory(Preempting):
    def preempt(self, job: Job) -> None:
        super().preempt(job)
        for choice in job.choices:
            choice.cum_log_probs = 0.0


@mutant("positions_forget_what_was_handed_in_with_the_memory", kills="RES-06/preempted", also="STR-06/seen")
class PositionsForgetWhatWasHandedInWithTheMemory(_Remembers):
    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        if choice in self.had:
            output.first_output_position -= choice.handed_in
        return output


@mutant("salts_go_with_the_memory", kills="USE-07/preempted")
class SaltsGoWithTheMemory(Preempting):
    def preempt(self, job: Job) -> None:
        super().preempt(job)
        job.request.cache_salt = ""
