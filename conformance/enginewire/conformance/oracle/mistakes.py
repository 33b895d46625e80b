"""Requests with one mistake beside any mix of options: what is refused alone may slip through in company.

That one was accepted is for the monitor to say. Sends nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.draw import Offer, draw
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.session.features import FEATURES
from enginewire.conformance.session.requests import Value, path_of
from enginewire.conformance.session.sizes import most_alternatives
from enginewire.field_rules import FIELD_RULES

FIRST: Final = 100_000
"""Of the cases that get a mistake: others than those whose end is predicted."""

Reasons = tuple[pb.ErrorReason.ValueType, ...]

EACH: Final = 2
"""How often each mistake is made."""

INVALID: Final = (pb.ERROR_REASON_INVALID_REQUEST,)
UNKNOWN: Final = (pb.ERROR_REASON_MODEL_NOT_FOUND,)
NOT_OFFERED: Final = (pb.ERROR_REASON_UNSUPPORTED, pb.ERROR_REASON_INVALID_REQUEST)
LONGEST_ID: Final = 128

TOP: Final = 2
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A case, and what else is asked for: a mistake is among it, in the field `wrong`.

    `reasons`: those of which a refusal may have any.
    """

    case: Case
    changes: dict[str, Value]
    wrong: str
    reasons: Reasons = INVALID


def mistaken(seed: int, runs: Sequence[Greedy], offer: Offer, config: pb.EngineConfig) -> list[Mistaken]:
    """Each mistake in some cases."""
    found, longest = [], max(len(run.tokens) for run in runs)
    made: list[tuple[dict[str, Value], Reasons]]
    made = [(mistake, UNKNOWN if "model" in mistake else INVALID) for mistake in _mistakes(config, longest)]
    made += [(FEATURES[name], NOT_OFFERED) for name in _not_offered(config)]
    for number, (mistake, reasons) in enumerate(made * EACH):
        rng = random.Random(f"{seed}/mistake/{number}")
        case = draw(seed, FIRST + number, runs, offer)
        changes = {**_beside(rng, config), **mistake}
        found.append(Mistaken(case, changes, path_of(next(iter(mistake))), reasons))
    return found


def _not_offered(config: pb.EngineConfig) -> Iterator[str]:
    """Capabilities whose use has to be refused, whatever else a request asks for."""
    for name in sorted(FEATURES):
        # Two candidates for two choices are what they are without best_of.
        if name != "best_of" and not getattr(config.capabilities, name):
            yield name


def _beside(rng: random.Random, config: pb.EngineConfig) -> dict[str, Value]:
    """What changes which tokens come, and what is told of them."""
    can = config.capabilities
    some: list[tuple[bool, dict[str, Value]]] = [
        (True, {"temperature": rng.choice((0.5, 1.0, 1.7))}),
        (True, {"top_p": 0.9, "top_k": 20}),
        (can.seed, {"seed": SEED}),
        (can.min_p, {"min_p": 0.02}),
        (can.penalties, {"presence_penalty": 0.5, "frequency_penalty": -0.5}),
        (can.logprobs, {"logprobs": min(rng.choice((0, 1, TOP)), most_alternatives(config))}),
        (can.logprobs and can.selected_logprobs, {"logprobs": 0, "logprob_token_ids": [1, 0]}),
        (can.priority, {"priority": rng.choice((-1, 1))}),
    ]
    return {
        name: value
        for offered, each in some
        if offered and rng.random() < 0.4
        for name, value in each.items()
    }


def _mistakes(config: pb.EngineConfig, longest: int) -> Iterator[dict[str, Value]]:
    """What no server may accept, as far as it offers the field. `longest`: tokens of the longest answer."""
    can, beyond = config.capabilities, max(config.vocab_size, 1)
    for name in ("no name / at all", "", "x" * (LONGEST_ID + 1)):
        yield {"request_id": name}
    yield {"max_tokens": 0, "min_tokens": None, "resume": None}
    yield {"min_tokens": longest + 1, "max_tokens": longest}
    yield {"stream_interval": 0}
    yield {"top_k": beyond + 1}
    for name in ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden", "eos_token_ids"):
        yield {name: [0] * (FIELD_RULES[path_of(name)].most(config.limits) + 1)}
    yield {"model": "no-such-model"}
    yield {"token_ids": []}
    yield {"token_ids": [1, beyond]}
    for name in ("stop_token_ids", "stop_token_ids_hidden", "eos_token_ids"):
        yield {name: [beyond]}
    for temperature in (-1.0, math.nan):
        yield {"temperature": temperature}
    yield {"top_p": 0.0}
    yield {"top_k": -2}
    if can.min_p:
        yield {"min_p": 1.5}
    if can.penalties:
        for name in ("presence_penalty", "frequency_penalty"):
            yield {name: 2.5}
        yield {"repetition_penalty": 0.0}
        yield {"repetition_penalty": 10.5}
    if can.allowed_token_ids:
        yield {"allowed_token_ids": [1, beyond]}
    if can.bad_words:
        for word in ([], [1, beyond]):
            yield {"bad_words_token_ids": [pb.TokenSequence(token_ids=word)]}
    if can.resume:
        begun = pb.ResumedChoice(generated_token_ids=[1])
        yield {"resume": pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[beyond])], attempt=1)}
        yield {"resume": pb.Resume(choices=[begun, begun], attempt=1)}
        done = pb.ResumedChoice(generated_token_ids=[1], finished=True)
        yield {"resume": pb.Resume(choices=[done], attempt=1), "n": None}
    if can.logit_bias:
        yield {"logit_bias": [pb.LogitBias(token_id=1), pb.LogitBias(token_id=1)]}
        yield {"logit_bias": [pb.LogitBias(token_id=beyond, bias=1.0)]}
        yield {"logit_bias": [pb.LogitBias(token_id=1, bias=101.0)]}
    if can.logprobs:
        yield {"logprobs": most_alternatives(config) + 1}
    if can.multiple_choices:
        yield {"n": FIELD_RULES["sampling_options.n"].most(config.limits) + 1}
