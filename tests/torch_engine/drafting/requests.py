"""Requests with everything that may change or end an output, drawn together."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from random import Random

from enginewire import v1 as pb
from enginewire.torch_engine.requests.sequence import Grammar
from tests.torch_engine.tiny import VOCAB, Answer, CoreUnderTest

GUIDE = pb.GuidedDecoding(regex="alternating")


class Alternating:
    """A grammar of its own: even and odd tokens take turns, and the tenth ends it."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.is_too_slow = False

    def start(self, ending_ids: list[int]) -> Alternating:
        return Alternating()

    @property
    def is_over(self) -> bool:
        return self.count >= 10

    def accept(self, token_id: int) -> bool:
        is_allowed = not self.is_over and token_id % 2 == self.count % 2
        self.count += is_allowed
        return is_allowed

    def fill(self, masks, row: int) -> bool:
        masks[row] = 0x55555555 << self.count % 2 if self.count % 2 == 0 else -0x55555556
        return True

    def count_allowed(self, token_ids: Seq[int]) -> int:
        ahead = Alternating(self.count)
        return next((i for i, token_id in enumerate(token_ids) if not ahead.accept(token_id)), len(token_ids))


def follow_guides(engine: CoreUnderTest, grammar: Grammar | None = None) -> None:
    """Every request with a guide follows `grammar`: no library is needed to compile one."""
    read = engine.reader.read

    def reading(*of):
        request = read(*of)
        request.grammar = (grammar or Alternating()) if request.guide else None
        return request

    engine.reader.read = reading


def prompt_of(random: Random, length: int) -> list[int]:
    return [random.randrange(2, VOCAB) for _ in range(length)]


def draw(random: Random, prompt: list[int]) -> pb.PreprocessedRequest:
    """One request; about half of what there is to ask."""

    def maybe(value: object, chance: float = 0.3) -> object:
        return value if random.random() < chance else None

    sampling = {
        "temperature": random.choice([0.0, 0.7, 1.0]),
        "seed": random.randrange(100),
        "top_p": maybe(0.9),
        "top_k": maybe(20),
        "min_p": maybe(0.05),
        "repetition_penalty": maybe(1.3),
        "frequency_penalty": maybe(0.5),
        "presence_penalty": maybe(0.4),
        "logit_bias": maybe([pb.LogitBias(token_id=7, bias=2.0)]),
        "allowed_token_ids": maybe(random.sample(range(VOCAB), 40)),
        "bad_words_token_ids": maybe([pb.TokenSequence(token_ids=[random.randrange(VOCAB)] * 2)]),
        "n": random.choice([1, 1, 2]),
    }
    if random.random() < 0.2:
        sampling["allowed_token_ids"] = None
        sampling["guided_decoding"] = GUIDE
    if random.random() < 0.15:
        sampling["best_of"] = 3
    if random.random() < 0.1:
        sampling = {"best_of": 3, "n": sampling["n"], "use_beam_search": True, "temperature": 0.0}
    max_tokens = random.randint(1, 24)
    stop = {
        "max_tokens": max_tokens,
        "min_tokens": maybe(min(6, max_tokens)),
        "stop_token_ids": maybe(random.sample(range(VOCAB), 20)),
        "ignore_eos": maybe(True),
    }
    said = {"logprobs": maybe(2), "prompt_logprobs": maybe(1)}
    return pb.PreprocessedRequest(
        token_ids=prompt,
        sampling_options=pb.SamplingOptions(**given(sampling)),
        stop_conditions=pb.StopConditions(**given(stop)),
        output_options=pb.OutputOptions(**given(said)),
    )


def given(options: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def parts(answer: Answer) -> tuple[object, ...]:
    """All that a caller sees, but for what was cached or drafted, and which choice ended first."""
    scores: dict[int, list[tuple[float, ...]]] = {}
    for output in answer.outputs:
        row = output.logprobs
        values = (*row.token_logprobs, *row.top_logprobs, output.cum_log_probs)
        scores.setdefault(output.index, []).append(tuple(round(value, 3) for value in values))
    prompts = [
        [round(value, 3) for value in each.prompt_logprobs.logprobs.token_logprobs] for each in answer.outputs
    ]
    ends = sorted((end.index, end.finish_reason, end.stop_match.token_id) for end in answer.terminals)
    used = [
        (end.completion_usage.completion_tokens, end.completion_usage.total_tokens)
        for end in answer.terminals
        if end.HasField("completion_usage")
    ]
    return dict(answer.tokens), ends, used, scores, [each for each in prompts if each], answer.error
