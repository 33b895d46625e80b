"""Servers that serve each option rightly and two of them wrongly: only a mix of many shows it."""

from __future__ import annotations

import math
import time
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference


@mutant("masks_cannot_be_resumed", kills=("INF-09/mixed", "RES-02/repeating", "RES-03/repeating"))
class MasksCannotBeResumed(Reference):
    """Has both, and never thought of them together."""

    def validate(self, request: pb.GenerateRequest) -> None:
        super().validate(request)
        options = request.request.sampling_options
        if request.request.resume.choices and options.allowed_token_ids:
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, "resume: not under a mask", field="resume")


@mutant("bad_words_reach_into_the_prompt", kills="INF-09/mixed")
class BadWordsReachIntoThePrompt(Reference):
    """A word that begins at the end of the prompt is none of the output."""

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        super().apply_masks(choice, logits)
        history = [*choice.job.request.token_ids, *choice.tokens]
        for words in choice.job.request.sampling_options.bad_words_token_ids:
            *begin, last = words.token_ids
            if begin and history[-len(begin) :] == begin:
                logits[last] = -math.inf


@mutant("cached_prompts_are_not_penalised", kills="INF-09/mixed")
class CachedPromptsAreNotPenalised(Reference):
    """The repetition penalty counts what was computed."""

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        request, factor = choice.job.request, choice.job.request.sampling_options.repetition_penalty
        computed = {*request.token_ids[choice.job.cached_tokens :], *choice.tokens}
        before = {token: logits[token] for token in set(request.token_ids) - computed}
        super().apply_penalties(choice, logits)
        if factor:
            for token, value in before.items():
                logits[token] = value


SECONDS: Final = 4.0
"""More than anything may take to be idle again."""


class _Remembers(Reference):
    """Something is left of a request with a bias and bad words."""

    left_at = -math.inf

    def validate(self, request: pb.GenerateRequest) -> None:
        super().validate(request)
        options = request.request.sampling_options
        if options.logit_bias and options.bad_words_token_ids:
            self.left_at = time.monotonic()


@mutant("biased_bad_words_wait_for_long", kills="CON-07/mixed")
class BiasedBadWordsWaitForLong(_Remembers):
    """They are in the load for some seconds when they have ended."""

    def load(self) -> pb.Load:
        load = super().load()
        load.waiting_tokens += time.monotonic() < self.left_at + SECONDS
        return load


@mutant("biased_bad_words_change_the_facts", kills="INF-03/mixed")
class BiasedBadWordsChangeTheFacts(_Remembers):
    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        info.engine_version += "+" * (self.left_at > 0)
        return info


@mutant("masked_choices_have_flat_values", kills=("LOG-11/mixed", "LOG-02/repeating"))
class MaskedChoicesHaveFlatValues(Reference):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        options = choice.job.request.sampling_options
        is_masked = bool(options.n > 1 and options.allowed_token_ids)
        super().add_logprobs(choice, output, [value / 4 for value in logits] if is_masked else logits)


@mutant("rows_are_penalised_beside_others", kills="LOG-11/mixed")
class RowsArePenalisedBesideOthers(Reference):
    """Rows are taken after bias and masks, as soon as anybody in the batch has all penalties."""

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        others = [job.request.sampling_options for job in self.running if job is not choice.job]
        is_mixed = any(
            other.presence_penalty and other.frequency_penalty and other.repetition_penalty
            for other in others
        )
        super().add_logprobs(choice, output, self.adjusted(choice, list(logits)) if is_mixed else logits)


@mutant("seeded_refusals_name_the_seed", kills="ERR-12/mixed")
class SeededRefusalsNameTheSeed(Reference):
    """What was looked at last, not what was wrong."""

    def validate(self, request: pb.GenerateRequest) -> None:
        options = request.request.sampling_options
        try:
            super().validate(request)
        except Refusal as refusal:
            if options.HasField("seed") and options.HasField("min_p") and refusal.detail.field:
                refusal.detail.field = "sampling_options.seed"
            raise


@mutant("all_candidates_are_one", kills="INF-09/mixed")
class AllCandidatesAreOne(Reference):
    """A `top_k` of -1 is the last of the sorted ones."""

    def top_k(self, options: pb.SamplingOptions) -> int:
        return 1 if options.top_k == -1 else super().top_k(options)


@mutant(
    "usage_of_choices_that_end_together",
    kills="INF-09/mixed",
    also=("RES-04/seen", "SEQ-03/seen", "USE-05/seen"),
)
class UsageOfChoicesThatEndTogether(Reference):
    """As many tokens for each choice as the last one has."""

    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        if len(job.choices) > 1 and job.request.sampling_options.top_k:
            usage.completion_tokens = len(job.choices) * max(len(choice.tokens) for choice in job.choices)
            usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        return usage


@mutant("cached_prompts_have_flat_rows", kills="LOG-11/mixed")
class CachedPromptsHaveFlatRows(Reference):
    """The values of what is cached are gone beside a mask."""

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        super().add_logprobs(choice, output, logits)
        if choice.job.request.sampling_options.allowed_token_ids and output.HasField("prompt_logprobs"):
            values = output.prompt_logprobs.logprobs.token_logprobs
            values[:] = [value / 2 for value in values]
