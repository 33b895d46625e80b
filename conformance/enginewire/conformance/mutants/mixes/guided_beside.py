"""Servers that follow every guide, but not beside everything."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities import grammar
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference


def _is_guided(choice: Choice) -> bool:
    return choice.job.request.sampling_options.HasField("guided_decoding")


@mutant("guides_begin_anew_behind_a_cut", kills=("GDE-01/guided", "GDE-02/guided", "GDE-03/guided"))
class GuidesBeginAnewBehindACut(Reference):
    """The tokens handed in are no part of the match."""

    def allowed(self, choice: Choice, guide: grammar.Guide) -> set[int]:
        handed = {each.index: each for each in choice.job.request.resume.choices}.get(choice.index)
        whole, count = choice.tokens, len(handed.generated_token_ids) if handed else 0
        choice.tokens = whole[count:]
        allowed = super().allowed(choice, guide)
        choice.tokens = whole
        return allowed


@mutant("guided_rows_take_the_second_token", kills="SAM-01/guided")
class GuidedRowsTakeTheSecondToken(Reference):
    """Beside log-probabilities the best of what a guide allows does not come where there is another."""

    def adjusted(self, choice: Choice, logits: list[float]) -> list[float]:
        logits = super().adjusted(choice, logits)
        options = choice.job.request.sampling_options
        is_greedy = options.HasField("temperature") and options.temperature == 0
        possible = sorted((value for value in logits if value > float("-inf")), reverse=True)
        asks = choice.job.request.output_options.HasField("logprobs")
        if _is_guided(choice) and is_greedy and asks and len(possible) > 1:
            logits[logits.index(possible[0])] = possible[1] - 1
        return logits


@mutant("guided_rows_are_masked", kills="LOG-11/guided")
class GuidedRowsAreMasked(Reference):
    """Log-probabilities are those of what the guide has left."""

    def add_logprobs(self, choice: Choice, output: pb.LLMEngineOutput, logits: list[float]) -> None:
        if _is_guided(choice):
            logits = list(logits)
            self.apply_masks(choice, logits)
        super().add_logprobs(choice, output, logits)
