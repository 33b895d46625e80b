"""Servers that treat tokens wrongly that come behind those of a right draft."""

from __future__ import annotations

import random

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.variants.drafting import Drafting


class _Behind(Drafting):
    """Knows when it chooses such a token."""

    is_behind = False

    def advance_behind(self, choice: Choice) -> pb.LLMEngineOutput:
        self.is_behind = True
        try:
            return super().advance_behind(choice)
        finally:
            self.is_behind = False


class _BehindOfLaterChoices(_Behind):
    """Only where the token is not of the first choice."""

    def advance_behind(self, choice: Choice) -> pb.LLMEngineOutput:
        return super().advance_behind(choice) if choice.index else Drafting.advance_behind(self, choice)


@mutant("no_bias_behind_drafts", kills="SAM-09/repeating")
class NoBiasBehindDrafts(_Behind):
    def adjusted(self, choice: Choice, logits: list[float]) -> list[float]:
        if not self.is_behind:
            return super().adjusted(choice, logits)
        self.apply_masks(choice, logits)
        self.apply_penalties(choice, logits)
        return logits


@mutant("stop_ids_pass_behind_drafts", kills="STP-01/repeating")
class StopIdsPassBehindDrafts(_Behind):
    def caller_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return [] if self.is_behind else super().caller_stops(request)


@mutant("eos_ids_pass_behind_drafts", kills="STP-04/repeating")
class EosIdsPassBehindDrafts(_Behind):
    def system_stops(self, request: pb.PreprocessedRequest) -> list[int]:
        return [] if self.is_behind else super().system_stops(request)


@mutant("rows_of_the_token_before_behind_drafts", kills="LOG-02/repeating")
class RowsOfTheTokenBeforeBehindDrafts(_Behind):
    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        if self.is_behind:
            request = choice.job.request
            logits = self.logits([*request.token_ids, *choice.tokens[:-1]], request.routing.lora_name)
        super().add_logprobs(choice, output, logits)


class _OfTheStep(_Behind):
    """Knows how many tokens a choice had before its step."""

    def __init__(self) -> None:
        super().__init__()
        self.had: dict[Choice, int] = {}

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        self.had[choice] = len(choice.tokens)
        return super().advance(choice)


@mutant("one_random_number_for_a_draft", kills="RES-02/repeating")
class OneRandomNumberForADraft(_OfTheStep):
    def draw(self, choice: Choice) -> float:
        place = self.had[choice] if self.is_behind else len(choice.tokens)
        return random.Random(hash((choice.job.seed, choice.index, place))).random()


@mutant("penalties_of_the_step_before", kills="RES-03/repeating")
class PenaltiesOfTheStepBefore(_OfTheStep):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        tokens = choice.tokens
        if self.is_behind:
            choice.tokens = tokens[: self.had[choice]]
        super().apply_penalties(choice, logits)
        choice.tokens = tokens


@mutant("no_bias_behind_drafts_of_later_choices", kills="SAM-09/repeating")
class NoBiasBehindDraftsOfLaterChoices(_BehindOfLaterChoices, NoBiasBehindDrafts):
    pass


@mutant("stop_ids_pass_behind_drafts_of_later_choices", kills="STP-01/repeating")
class StopIdsPassBehindDraftsOfLaterChoices(_BehindOfLaterChoices, StopIdsPassBehindDrafts):
    pass


@mutant("eos_ids_pass_behind_drafts_of_later_choices", kills="STP-04/repeating")
class EosIdsPassBehindDraftsOfLaterChoices(_BehindOfLaterChoices, EosIdsPassBehindDrafts):
    pass


@mutant("rows_of_the_token_before_behind_drafts_of_later_choices", kills="LOG-02/repeating")
class RowsOfTheTokenBeforeBehindDraftsOfLaterChoices(_BehindOfLaterChoices, RowsOfTheTokenBeforeBehindDrafts):
    pass


@mutant("one_random_number_for_a_draft_of_later_choices", kills="RES-02/repeating")
class OneRandomNumberForADraftOfLaterChoices(_BehindOfLaterChoices, OneRandomNumberForADraft):
    pass


@mutant("penalties_of_the_step_before_of_later_choices", kills="RES-03/repeating")
class PenaltiesOfTheStepBeforeOfLaterChoices(_BehindOfLaterChoices, PenaltiesOfTheStepBefore):
    pass
