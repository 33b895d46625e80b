"""Servers whose filters work in one setting and not in another."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference

Kept = list[tuple[int, float]]

CHUNK = 64
"""Tokens of a prompt that are computed in one step."""


@mutant("top_k_only_up_to_seven", kills="SAM-07/settings")
class TopKOnlyUpToSeven(Reference):
    def top_k(self, options: pb.SamplingOptions) -> int:
        return super().top_k(options) if options.top_k <= 7 else self.config.vocab_size


@mutant("top_k_at_most_temperature_one", kills="SAM-07/settings")
class TopKAtMostTemperatureOne(Reference):
    def top_k(self, options: pb.SamplingOptions) -> int:
        is_warm = 1 < options.temperature < 2 and options.top_k > 1
        return self.config.vocab_size if is_warm else super().top_k(options)


@mutant("top_k_ignored_beside_min_p", kills="SAM-07/settings")
class TopKIgnoredBesideMinP(Reference):
    def top_k(self, options: pb.SamplingOptions) -> int:
        return self.config.vocab_size if options.min_p and options.top_k > 1 else super().top_k(options)


@mutant("top_p_only_close_to_zero", kills="SAM-11")
class TopPOnlyCloseToZero(Reference):
    def top_p(self, options: pb.SamplingOptions) -> float:
        return super().top_p(options) if options.top_p < 0.01 else 1.0


@mutant("top_p_ignored_when_warm", kills="SAM-11")
class TopPIgnoredWhenWarm(Reference):
    def top_p(self, options: pb.SamplingOptions) -> float:
        return 1.0 if 1 < options.temperature < 2 else super().top_p(options)


@mutant("top_p_ignored_beside_min_p", kills="SAM-11")
class TopPIgnoredBesideMinP(Reference):
    def top_p(self, options: pb.SamplingOptions) -> float:
        return 1.0 if options.min_p else super().top_p(options)


@mutant("top_p_of_the_first_choice", kills="SAM-11")
class TopPOfTheFirstChoice(Reference):
    """The other choices are drawn without."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        self._index = choice.index
        return super().next_token(choice, logits)

    def top_p(self, options: pb.SamplingOptions) -> float:
        return 1.0 if self._index else super().top_p(options)


class _MinP(Reference):
    """Takes some values of `min_p` for others."""

    def min_p(self, options: pb.SamplingOptions) -> float:
        return options.min_p

    def kept(self, logits: list[float], temperature: float, options: pb.SamplingOptions) -> Kept:
        other = pb.SamplingOptions()
        other.CopyFrom(options)
        other.min_p = self.min_p(options)
        return super().kept(logits, temperature, other)


@mutant("min_p_ignored", kills="SAM-12")
class MinPIgnored(_MinP):
    def min_p(self, options: pb.SamplingOptions) -> float:
        return 0.0


@mutant("min_p_ignored_when_warm", kills="SAM-12")
class MinPIgnoredWhenWarm(_MinP):
    def min_p(self, options: pb.SamplingOptions) -> float:
        return 0.0 if options.temperature > 1 else options.min_p


@mutant("min_p_ignored_beside_top_p", kills="SAM-12")
class MinPIgnoredBesideTopP(_MinP):
    def min_p(self, options: pb.SamplingOptions) -> float:
        return 0.0 if self.top_p(options) < 1 else options.min_p


@mutant("min_p_held_below_a_tenth", kills="SAM-12")
class MinPHeldBelowATenth(_MinP):
    def min_p(self, options: pb.SamplingOptions) -> float:
        return min(options.min_p, 0.1)


@mutant("temperature_after_the_filters", kills="SAM-15")
class TemperatureAfterTheFilters(Reference):
    def kept(self, logits: list[float], temperature: float, options: pb.SamplingOptions) -> Kept:
        filtered = super().kept(logits, 1.0, options)
        return [(token, weight ** (1 / temperature)) for token, weight in filtered]


@mutant("top_p_of_all_beside_top_k", kills="SAM-15")
class TopPOfAllBesideTopK(Reference):
    """The nucleus is that of the whole vocabulary."""

    def kept(self, logits: list[float], temperature: float, options: pb.SamplingOptions) -> Kept:
        nucleus = pb.SamplingOptions()
        nucleus.CopyFrom(options)
        nucleus.ClearField("top_k")
        return super().kept(logits, temperature, nucleus)[: self.top_k(options)]


@mutant("temperature_at_most_one", kills="SAM-16")
class TemperatureAtMostOne(Reference):
    """Unless it is far above."""

    def temperature(self, options: pb.SamplingOptions) -> float:
        asked = super().temperature(options)
        return 1.0 if 1 < asked <= 2 else asked


@mutant("temperature_at_least_one", kills="SAM-16")
class TemperatureAtLeastOne(Reference):
    """Unless it is greedy."""

    def temperature(self, options: pb.SamplingOptions) -> float:
        asked = super().temperature(options)
        return max(asked, 1.0) if asked else asked


@mutant("temperature_at_most_two", kills="SAM-16/hottest")
class TemperatureAtMostTwo(Reference):
    def temperature(self, options: pb.SamplingOptions) -> float:
        return min(super().temperature(options), 2.0)


@mutant("min_p_waits_for_the_first_token_of_long_prompts", kills="SAM-12")
class MinPWaitsForTheFirstTokenOfLongPrompts(_MinP):
    """Of those that take several steps."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        self._is_first = not choice.tokens and len(choice.job.request.token_ids) > CHUNK
        return super().next_token(choice, logits)

    def min_p(self, options: pb.SamplingOptions) -> float:
        return 0.0 if self._is_first else options.min_p
