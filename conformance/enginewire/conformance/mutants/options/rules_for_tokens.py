"""Servers whose bias, penalties or lists of tokens reach less, or more, than they should."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference

CHUNK = 64
"""Tokens of a prompt that are computed in one step."""


class OtherOptions(Reference):
    """Chooses some tokens under other options than those of the request."""

    def adjusted(self, choice: Choice, logits: list[float]) -> list[float]:
        options = choice.job.request.sampling_options
        kept = pb.SamplingOptions()
        kept.CopyFrom(options)
        self.spoil(choice, options)
        adjusted = super().adjusted(choice, logits)
        options.CopyFrom(kept)
        return adjusted

    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        """Change the options of one token."""


@mutant("a_mask_that_leaves_stop_ids_is_dropped", kills="SAM-13")
class AMaskThatLeavesStopIdsIsDropped(Reference):
    """Where min_tokens keeps all of them from being sampled."""

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        request = choice.job.request
        allowed, stops = request.sampling_options.allowed_token_ids, self.caller_stops(request)
        is_barred = len(choice.tokens) + 1 < request.stop_conditions.min_tokens
        if not (is_barred and allowed and set(allowed) <= set(stops)):
            super().apply_masks(choice, logits)


@mutant("allowed_ids_behind_the_first_token", kills="SAM-13")
class AllowedIdsBehindTheFirstToken(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        if not choice.tokens:
            options.ClearField("allowed_token_ids")


@mutant("allowed_ids_of_the_first_choice", kills=("SAM-13", "STP-01/repeating", "STP-04/repeating"))
class AllowedIdsOfTheFirstChoice(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        if choice.index:
            options.ClearField("allowed_token_ids")


@mutant("single_bad_words_only", kills=("SAM-14", "SAM-14/resumed"))
class SingleBadWordsOnly(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        words = [word for word in options.bad_words_token_ids if len(word.token_ids) == 1]
        del options.bad_words_token_ids[:]
        options.bad_words_token_ids.extend(words)


@mutant("bad_words_of_two_at_most", kills="SAM-14")
class BadWordsOfTwoAtMost(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        words = [word for word in options.bad_words_token_ids if len(word.token_ids) <= 2]
        del options.bad_words_token_ids[:]
        options.bad_words_token_ids.extend(words)


@mutant("bad_words_by_their_last_token", kills="SAM-14")
class BadWordsByTheirLastToken(OtherOptions):
    """Of two tokens the last one is forbidden wherever it is."""

    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        for word in options.bad_words_token_ids:
            if len(word.token_ids) == 2:
                del word.token_ids[0]


@mutant("bad_words_by_their_last_three", kills="SAM-14")
class BadWordsByTheirLastThree(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        for word in options.bad_words_token_ids:
            del word.token_ids[:-3]


@mutant("bad_words_of_the_first_choice", kills="SAM-14")
class BadWordsOfTheFirstChoice(Reference):
    """All choices are held against what the first one has."""

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        first = choice.job.choices[0].tokens[: len(choice.tokens)]
        has_words = choice.job.request.sampling_options.bad_words_token_ids
        super().apply_masks(replace(choice, tokens=first) if has_words else choice, logits)


@mutant("allowed_ids_are_toggled", kills="SAM-13")
class AllowedIdsAreToggled(OtherOptions):
    """One that is there twice is not allowed, unless it is the only one."""

    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        odd = [token for token, count in Counter(options.allowed_token_ids).items() if count % 2]
        options.allowed_token_ids[:] = odd or options.allowed_token_ids


@mutant("bias_of_the_first_id", kills="SAM-17")
class BiasOfTheFirstId(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        del options.logit_bias[1:]


@mutant("bias_of_the_first_choice", kills=("SAM-17", "SAM-09/repeating"))
class BiasOfTheFirstChoice(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        if choice.index:
            options.ClearField("logit_bias")


@mutant("frequency_penalty_counts_the_prompt", kills="SAM-18/output")
class FrequencyPenaltyCountsThePrompt(Reference):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        request = choice.job.request
        for token, count in Counter(request.token_ids).items():
            logits[token] -= request.sampling_options.frequency_penalty * count


@mutant("presence_penalty_counts_all_choices", kills="SAM-18/output")
class PresencePenaltyCountsAllChoices(Reference):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        others = {token for other in choice.job.choices for token in other.tokens} - set(choice.tokens)
        for token in others:
            logits[token] -= choice.job.request.sampling_options.presence_penalty


@mutant("frequency_penalty_counts_once", kills="SAM-18/output")
class FrequencyPenaltyCountsOnce(Reference):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        for token, count in Counter(choice.tokens).items():
            logits[token] += choice.job.request.sampling_options.frequency_penalty * (count - 1)


@mutant("penalties_wait_for_the_minimum", kills="SAM-18/output")
class PenaltiesWaitForTheMinimum(Reference):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        if len(choice.tokens) + 1 >= choice.job.request.stop_conditions.min_tokens:
            super().apply_penalties(choice, logits)


class _Repetition(Reference):
    """Takes back what the repetition penalty does to some tokens."""

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        before = list(logits)
        super().apply_penalties(choice, logits)
        penalty = choice.job.request.sampling_options.repetition_penalty
        if choice.job.request.sampling_options.HasField("repetition_penalty") and math.isfinite(penalty):
            for token in self.spared(choice):
                logits[token] = before[token]

    def spared(self, choice: Choice) -> set[int]:
        """Tokens that it does not reach."""
        return set()


@mutant("repetition_penalty_without_the_prompt", kills="SAM-18/repetition")
class RepetitionPenaltyWithoutThePrompt(_Repetition):
    def spared(self, choice: Choice) -> set[int]:
        return set(choice.job.request.token_ids) - set(choice.tokens)


@mutant("repetition_penalty_of_the_last_chunk", kills="SAM-18/repetition")
class RepetitionPenaltyOfTheLastChunk(_Repetition):
    """Of a prompt that takes several steps."""

    def spared(self, choice: Choice) -> set[int]:
        prompt = choice.job.request.token_ids
        end = max(len(prompt) - 1, 0) // CHUNK * CHUNK
        return set(prompt[:end]) - {*prompt[end:], *choice.tokens}


@mutant("repetition_penalty_without_the_output", kills="SAM-18/repetition")
class RepetitionPenaltyWithoutTheOutput(_Repetition):
    def spared(self, choice: Choice) -> set[int]:
        return set(choice.tokens) - set(choice.job.request.token_ids)


@mutant("repetition_penalty_twice", kills="SAM-18/repetition")
class RepetitionPenaltyTwice(Reference):
    """Once for the prompt, and once for the output."""

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        options = choice.job.request.sampling_options
        if options.HasField("repetition_penalty"):
            for token in set(choice.job.request.token_ids) & set(choice.tokens):
                over = logits[token] > 0
                logits[token] *= 1 / options.repetition_penalty if over else options.repetition_penalty


@mutant("repetition_penalty_divides_all", kills="SAM-18/repetition")
class RepetitionPenaltyDividesAll(_Repetition):
    """A logit below 0 as well, which makes it larger."""

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        before = list(logits)
        super().apply_penalties(choice, logits)
        penalty = choice.job.request.sampling_options.repetition_penalty
        if penalty:
            for token in {*choice.job.request.token_ids, *choice.tokens}:
                logits[token] = before[token] / penalty if before[token] < 0 else logits[token]


@mutant("bad_words_by_their_last_id", kills="SAM-14")
class BadWordsByTheirLastId(OtherOptions):
    """A later one takes the place of another one."""

    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        kept = {word.token_ids[-1]: word for word in map(_copied, options.bad_words_token_ids)}
        options.ClearField("bad_words_token_ids")
        options.bad_words_token_ids.extend(kept.values())


def _copied(word: pb.TokenSequence) -> pb.TokenSequence:
    return pb.TokenSequence(token_ids=word.token_ids)


@mutant("bias_allows_what_is_not", kills="SAM-13")
class BiasAllowsWhatIsNot(OtherOptions):
    """What somebody wishes for is taken for one more allowed token."""

    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        if options.allowed_token_ids:
            options.allowed_token_ids.extend(each.token_id for each in options.logit_bias if each.bias > 0)


@mutant("bias_brings_bad_words_back", kills="SAM-14")
class BiasBringsBadWordsBack(OtherOptions):
    def spoil(self, choice: Choice, options: pb.SamplingOptions) -> None:
        wished = {each.token_id for each in options.logit_bias if each.bias > 0}
        for word in list(options.bad_words_token_ids):
            if word.token_ids[-1] in wished:
                options.bad_words_token_ids.remove(word)


@mutant("bad_words_begin_in_the_prompt", kills="SAM-14")
class BadWordsBeginInThePrompt(Reference):
    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        super().apply_masks(choice, logits)
        request = choice.job.request
        tokens = [*request.token_ids, *choice.tokens]
        for *begin, last in (word.token_ids for word in request.sampling_options.bad_words_token_ids):
            if tokens[len(tokens) - len(begin) :] == begin:
                logits[last] = -math.inf
