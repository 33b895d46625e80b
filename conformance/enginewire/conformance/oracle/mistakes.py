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
from enginewire.conformance.session.requests import Value, path_of
from enginewire.conformance.session.sizes import most_alternatives
from enginewire.field_rules import FIELD_RULES

FIRST: Final = 100_000
"""Of the cases that get a mistake: others than those whose end is predicted."""

EACH: Final = 3
"""How often each mistake is made."""

TOP: Final = 2
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A case, and what else is asked for: a mistake is among it, in the field `wrong`."""

    case: Case
    changes: dict[str, Value]
    wrong: str


def mistaken(seed: int, runs: Sequence[Greedy], offer: Offer, config: pb.EngineConfig) -> list[Mistaken]:
    """Each mistake in some cases."""
    found = []
    for number, mistake in enumerate([*_mistakes(config)] * EACH):
        rng = random.Random(f"{seed}/mistake/{number}")
        case = draw(seed, FIRST + number, runs, offer)
        found.append(Mistaken(case, {**_beside(rng, config), **mistake}, path_of(next(iter(mistake)))))
    return found


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


def _mistakes(config: pb.EngineConfig) -> Iterator[dict[str, Value]]:
    """What no server may accept, as far as it offers the field."""
    can, beyond = config.capabilities, max(config.vocab_size, 1)
    yield {"request_id": "no name / at all"}
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
    if can.logit_bias:
        yield {"logit_bias": [pb.LogitBias(token_id=beyond, bias=1.0)]}
        yield {"logit_bias": [pb.LogitBias(token_id=1, bias=101.0)]}
    if can.logprobs:
        yield {"logprobs": most_alternatives(config) + 1}
    if can.multiple_choices:
        yield {"n": FIELD_RULES["sampling_options.n"].most(config.limits) + 1}
