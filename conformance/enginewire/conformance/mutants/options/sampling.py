"""Servers that choose tokens in another way than they were told."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings

LATE = 20
"""From here on nobody but a check of repeated runs looks at the tokens."""

LONG_PROMPT = 48

CHUNK = 64
"""Tokens that are computed in one step."""


@mutant("greedy_random", kills="SAM-01")
class GreedyRandom(Reference):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        if len(choice.tokens) < LATE or self.temperature(choice.job.request.sampling_options):
            return super().next_token(choice, logits)
        best = sorted(range(len(logits)), key=lambda token: -logits[token])
        return secrets.choice(best[:2])


@mutant("top_k_of_all_is_one", kills="SAM-16/no-filter")
class TopKOfAllIsOne(Reference):
    """Minus one stands for all tokens."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        options = choice.job.request.sampling_options
        if options.top_k == -1:
            options.top_k = 1
        return super().next_token(choice, logits)


@mutant("prompts_are_seeds", kills="SAM-16/no-filter")
class PromptsAreSeeds(Reference):
    """Where the request has none."""

    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = math.inf) -> Job:
        job = super().job(request_id, request, deadline)
        if not request.sampling_options.HasField("seed"):
            job.seed = hash(tuple(request.token_ids))
        return job


@mutant("a_temperature_brings_its_own_top_k", kills="SAM-10/seeded")
class ATemperatureBringsItsOwnTopK(Reference):
    """Whoever names a warm one and no top_k has 50."""

    def top_k(self, options: pb.SamplingOptions) -> int:
        is_alone = 1.5 < options.temperature < 2 and not options.HasField("top_k")
        return 50 if is_alone else super().top_k(options)


@mutant("seed_ignored", kills="SAM-02")
class SeedIgnored(Reference):
    def draw(self, choice: Choice) -> float:
        return secrets.randbits(53) / 2**53


@mutant("seed_cut_to_32_bits", kills="SAM-02")
class SeedCutTo32Bits(Reference):
    """A large seed is taken for none."""

    def draw(self, choice: Choice) -> float:
        return random.random() if choice.job.seed > 2**63 else super().draw(choice)


@mutant("seed_constant", kills="SAM-03")
class SeedConstant(Reference):
    def draw(self, choice: Choice) -> float:
        return random.Random(hash((choice.index, len(choice.tokens)))).random()


class _SharedRng(Reference):
    """One source of random numbers for all, as soon as there is more than one request."""

    first = 0

    def draw(self, choice: Choice) -> float:
        if len(self.running) > 1 and len(choice.tokens) >= self.first:
            return random.random()
        return super().draw(choice)


@mutant("shared_rng", kills=("SAM-04", "SAM-04/batch-invariant"))
class SharedRng(_SharedRng):
    pass


@mutant("shared_rng_of_further_choices", kills="SAM-04/full-batch")
class SharedRngOfFurtherChoices(Reference):
    """Once the batch is half full."""

    def draw(self, choice: Choice) -> float:
        is_full = len(self.running) > self.config.max_num_seqs // 2
        return random.random() if choice.index and is_full else super().draw(choice)


@mutant("chunks_use_up_numbers", kills="SAM-04/full-batch")
class ChunksUseUpNumbers(Reference):
    """One for each step that a prompt takes beside the others."""

    def draw(self, choice: Choice) -> float:
        left = CHUNK - sum(len(job.open_choices) for job in self.running)
        skipped = (len(choice.job.request.token_ids) - 1) // left
        return random.Random(hash((choice.job.seed, choice.index, len(choice.tokens) + skipped))).random()


@mutant("shared_rng_later", kills="SAM-04/batch-invariant")
class SharedRngLater(_SharedRng):
    first = 1


@mutant("batch_cross_talk", kills=("SAM-04/full-batch", "SAM-05", "SAM-01/drawn"))
class BatchCrossTalk(Reference):
    """Long prompts are mixed up with those of a neighbour."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        others = [job for job in self.running if job is not choice.job]
        if others and len(choice.job.request.token_ids) > LONG_PROMPT:
            logits = self.logits([*choice.job.request.token_ids, *others[0].request.token_ids])
        return super().next_token(choice, logits)


@mutant("top_k_ignored", kills="SAM-06")
class TopKIgnored(Reference):
    def top_k(self, options: pb.SamplingOptions) -> int:
        return self.config.vocab_size


@mutant("top_p_ignored", kills="SAM-06")
class TopPIgnored(Reference):
    def top_p(self, options: pb.SamplingOptions) -> float:
        return 1.0


@mutant("top_k_off", kills="SAM-07")
class TopKOff(Reference):
    def top_k(self, options: pb.SamplingOptions) -> int:
        return super().top_k(options) + (options.top_k > 1)


@mutant("top_k_off_without_logprobs", kills="SAM-07")
class TopKOffWithoutLogprobs(TopKOff):
    settings = replace(Settings(), capabilities=("seed", "multiple_choices"))


@mutant("top_k_of_the_first_token", kills="SAM-07")
class TopKOfTheFirstToken(Reference):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        options = choice.job.request.sampling_options
        if options.top_k < 2 or not choice.tokens:
            return super().next_token(choice, logits)
        unfiltered = pb.SamplingOptions()
        temperature = self.temperature(options)
        return self.sample(self.kept(logits, temperature, unfiltered), self.draw(choice))


@mutant("penalty_applied_at_identity", kills=("SAM-08", "SAM-18/output"))
class PenaltyAppliedAtIdentity(Reference):
    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        super().apply_penalties(choice, logits)
        if choice.job.request.sampling_options.HasField("presence_penalty"):
            for token in choice.tokens:
                logits[token] -= 1.0


def _penalty_ignored(name: str) -> Callable[[Reference, Choice, list[float]], None]:
    def apply_penalties(self: Reference, choice: Choice, logits: list[float]) -> None:
        options = choice.job.request.sampling_options
        kept = pb.SamplingOptions()
        kept.CopyFrom(options)
        options.ClearField(name)  # type: ignore[arg-type]  # one of the fields below
        Reference.apply_penalties(self, choice, logits)
        options.CopyFrom(kept)

    return apply_penalties


@mutant("presence_penalty_ignored", kills=("SAM-08", "SAM-18/output"))
class PresencePenaltyIgnored(Reference):
    apply_penalties = _penalty_ignored("presence_penalty")  # type: ignore[assignment]  # a function as a method


@mutant("frequency_penalty_ignored", kills=("SAM-08", "SAM-18/output"))
class FrequencyPenaltyIgnored(Reference):
    apply_penalties = _penalty_ignored("frequency_penalty")  # type: ignore[assignment]  # a function as a method


@mutant("repetition_penalty_ignored", kills=("SAM-08", "SAM-18/repetition"))
class RepetitionPenaltyIgnored(Reference):
    apply_penalties = _penalty_ignored("repetition_penalty")  # type: ignore[assignment]  # a function as a method


class _Biased(Reference):
    """Takes some biases for others."""

    def bias(self, value: float) -> float:
        return value

    def adjusted(self, choice: Choice, logits: list[float]) -> list[float]:
        for entry in choice.job.request.sampling_options.logit_bias:
            logits[entry.token_id] += self.bias(entry.bias) - entry.bias
        return super().adjusted(choice, logits)


@mutant("logit_bias_ignored", kills="SAM-09")
class LogitBiasIgnored(_Biased):
    def bias(self, value: float) -> float:
        return 0.0


@mutant("logit_bias_only_forces", kills="SAM-09")
class LogitBiasOnlyForces(_Biased):
    def bias(self, value: float) -> float:
        return max(value, 0.0)


@mutant("logit_bias_only_forbids", kills="SAM-09")
class LogitBiasOnlyForbids(_Biased):
    def bias(self, value: float) -> float:
        return min(value, 0.0)


@mutant("biases_are_whole_numbers", kills="SAM-17")
class BiasesAreWholeNumbers(_Biased):
    def bias(self, value: float) -> float:
        return float(int(value))


@mutant("hidden_default", kills="SAM-10/seeded")
class HiddenDefault(Reference):
    def temperature(self, options: pb.SamplingOptions) -> float:
        return super().temperature(options) if options.HasField("temperature") else 0.3


@mutant("no_defaults_said", kills="SAM-10")
class NoDefaultsSaid(Reference):
    def engine_config(self) -> pb.EngineConfig:
        config = super().engine_config()
        self._unsaid = config.capabilities.default_sampling.temperature
        config.capabilities.ClearField("default_sampling")
        return config

    def temperature(self, options: pb.SamplingOptions) -> float:
        return super().temperature(options) if options.HasField("temperature") else self._unsaid


@mutant("seeds_of_32_bits", kills="SAM-03")
class SeedsOf32Bits(Reference):
    def draw(self, choice: Choice) -> float:
        seed = choice.job.seed % 2**32
        return random.Random(hash((seed, choice.index, len(choice.tokens)))).random()


@mutant("seeds_have_a_sign", kills="SAM-03")
class SeedsHaveASign(Reference):
    """Which is not looked at."""

    def draw(self, choice: Choice) -> float:
        seed = choice.job.seed % 2**63
        return random.Random(hash((seed, choice.index, len(choice.tokens)))).random()
