"""Which tokens come: invented logits, and the contract's order of operations on them.

The logits of a position depend on the prompt, the tokens so far and nothing else; the random number of
a token on seed, choice and position. So every rule about sampling holds exactly.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.validation import Validation

IMPOSSIBLE = -1e30
"""What the contract writes for the log-probability of a token of probability zero."""


class Model(Validation):
    """Chooses tokens."""

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        """One number per token of the vocabulary, for what follows `tokens`."""
        # Of integers and tuples the hash is the same in every process; of strings it is not.
        salt = sum(adapter.encode())
        source = random.Random(hash((salt, *tokens)))
        draw = source.random
        return [8.0 * draw() for _ in range(self.config.vocab_size)]

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        """The token of the choice's next position."""
        options = choice.job.request.sampling_options
        allowed = self.adjusted(choice, list(logits))
        if max(allowed) == -math.inf:
            raise self.nothing_left()
        temperature = self.temperature(options)
        if temperature == 0:
            return max(range(len(allowed)), key=allowed.__getitem__)
        return self.sample(self.kept(allowed, temperature, options), self.draw(choice))

    def nothing_left(self) -> Refusal:
        """Why a choice without a token to choose fails: by its lists, for there is nothing else."""
        field = "sampling_options.allowed_token_ids"
        return Refusal(pb.ERROR_REASON_INVALID_REQUEST, f"{field}: leave no token to choose", field=field)

    def temperature(self, options: pb.SamplingOptions) -> float:
        """What is asked for or the default; tiny ones are raised."""
        if not options.HasField("temperature"):
            return self.config.capabilities.default_sampling.temperature
        return max(options.temperature, 0.01) if options.temperature else 0.0

    def draw(self, choice: Choice) -> float:
        """The random number of this token, in [0, 1)."""
        return random.Random(hash((choice.job.seed, choice.index, len(choice.tokens)))).random()

    def adjusted(self, choice: Choice, logits: list[float]) -> list[float]:
        """After masks, bias and penalties. Changes `logits`."""
        options = choice.job.request.sampling_options
        self.apply_masks(choice, logits)
        for entry in options.logit_bias:
            logits[entry.token_id] += entry.bias
        self.apply_penalties(choice, logits)
        return logits

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        """Tokens that must not come. Changes `logits`."""
        options = choice.job.request.sampling_options
        if options.allowed_token_ids:
            for token in set(range(len(logits))) - set(options.allowed_token_ids):
                logits[token] = -math.inf
        for words in options.bad_words_token_ids:
            *begin, last = words.token_ids
            if choice.tokens[len(choice.tokens) - len(begin) :] == begin:
                logits[last] = -math.inf

    def apply_penalties(self, choice: Choice, logits: list[float]) -> None:
        """Presence, frequency and repetition. Changes `logits`."""
        options = choice.job.request.sampling_options
        if options.presence_penalty or options.frequency_penalty:
            for token, count in self.penalised(choice).items():
                logits[token] -= options.presence_penalty + options.frequency_penalty * count
        factor = options.repetition_penalty if options.HasField("repetition_penalty") else 1.0
        if factor != 1.0:
            for token in {*choice.job.request.token_ids, *choice.tokens}:
                logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor

    def penalised(self, choice: Choice) -> Counter[int]:
        """How often each token has come, to presence and frequency penalty."""
        return Counter(choice.tokens)

    def kept(
        self, logits: list[float], temperature: float, options: pb.SamplingOptions
    ) -> list[tuple[int, float]]:
        """The tokens that may be drawn with their probabilities, most probable first."""
        ordered = most_probable_first(logits)[: self.top_k(options)]
        best = logits[ordered[0]]
        weights = [math.exp((logits[token] - best) / temperature) for token in ordered]
        total, top_p, passed, kept = sum(weights), self.top_p(options), 0.0, []
        for token, weight in zip(ordered, weights, strict=True):
            if passed >= top_p * total or weight < options.min_p:
                break
            kept.append((token, weight))
            passed += weight
        return kept

    def top_k(self, options: pb.SamplingOptions) -> int:
        """How many tokens are kept."""
        return options.top_k if options.top_k > 0 else self.config.vocab_size

    def top_p(self, options: pb.SamplingOptions) -> float:
        """Which part of the probability is kept."""
        return options.top_p if options.HasField("top_p") else 1.0

    def sample(self, kept: list[tuple[int, float]], number: float) -> int:
        """The token at `number` of the kept probability."""
        rest = number * sum(weight for _, weight in kept)
        for token, weight in kept:
            rest -= weight
            if rest < 0:
                return token
        return kept[-1][0]

    def logprobs(self, logits: list[float], token: int, top: int, selected: Sequence[int]) -> pb.Logprobs:
        """One row of the model's own distribution."""
        values = self.log_softmax(logits)
        own, first = values[token], most_probable_first(values)[:top] if top else []
        return pb.Logprobs(
            token_logprobs=[own],
            token_ranks=[1 + sum([value > own for value in values])],
            top_n=top,
            top_token_ids=first,
            top_logprobs=[values[other] for other in first],
            selected_logprobs=[values[other] for other in selected],
        )

    def log_softmax(self, logits: list[float]) -> list[float]:
        """Natural logarithms of the probabilities."""
        best = max(logits)
        total = math.log(sum([math.exp(value - best) for value in logits]))
        return [value - best - total if value > IMPOSSIBLE else IMPOSSIBLE for value in logits]

    def prompt_logprobs(self, job: Job) -> pb.PromptLogprobs:
        """One row per prompt token after the first."""
        table, tokens = pb.Logprobs(), list(job.request.token_ids)
        top = job.request.output_options.prompt_logprobs
        for position in range(1, len(tokens)):
            row = self.logprobs(self.logits(tokens[:position]), tokens[position], top, ())
            table.MergeFrom(row)
        table.top_n = top
        return pb.PromptLogprobs(logprobs=table)


def most_probable_first(values: Sequence[float]) -> list[int]:
    """The tokens by their values; of equal ones the lowest comes first."""
    return sorted(range(len(values)), key=values.__getitem__, reverse=True)
