"""For each capability the request that uses it and nothing else; how far requests may go.

One table for two sides: what is advertised must work (INF-09), what is not must be refused (ERR-17).
Capabilities with RPCs of their own are not here: their areas say what uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.session.requests import Value

FEATURES: Final[dict[str, dict[str, Value]]] = {
    "seed": {"seed": 7},
    "multiple_choices": {"n": 2},
    "best_of": {"best_of": 2},
    "beam_search": {"use_beam_search": True},
    "min_p": {"min_p": 0.1},
    "penalties": {"presence_penalty": 0.5},
    "logit_bias": {"logit_bias": [pb.LogitBias(token_id=1, bias=1.0)]},
    "allowed_token_ids": {"allowed_token_ids": [1]},
    "bad_words": {"bad_words_token_ids": [pb.TokenSequence(token_ids=[1, 1])]},
    "logprobs": {"logprobs": 0},
    "prompt_logprobs": {"prompt_logprobs": 0},
    "selected_logprobs": {"logprob_token_ids": [1]},
    "guided_modes": {"guided_decoding": pb.GuidedDecoding(json_object=True)},
    "stop_strings": {"stop": ["never to be seen"]},
    "max_thinking_tokens": {"max_thinking_tokens": 1},
    "priority": {"priority": 1},
    "resume": {"resume": pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[1])], attempt=1)},
}
"""Capability to changes of a good request; the first field changed is the one a refusal names."""

SERVED_ALONE: Final = frozenset(FEATURES) - {"guided_modes"}
"""Those whose request every engine that advertises them serves; guides have kinds."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a request may ask of one thing: by its limit, or `usual` where that is silent.

    `make` gives a value with so many: the number itself, a list of that length, a text of that size.
    """

    field: str
    usual: int
    make: Callable[[int], Value]
    limit: str = ""
    capability: str = ""
    unique: bool = False
    """Entries are ids that may come once: no more than the vocabulary has."""


def _ids(count: int) -> Value:
    return [place % 2 for place in range(count)]


def _biases(count: int) -> Value:
    return [pb.LogitBias(token_id=place, bias=0.5) for place in range(count)]


def _words(count: int) -> Value:
    return [pb.TokenSequence(token_ids=[place % 2] * 3) for place in range(count)]


def _number(count: int) -> Value:
    return count


BOUNDS: Final = (
    Bound("prompt_logprobs", 20, _number, "max_prompt_logprobs", "prompt_logprobs"),
    Bound("eos_token_ids", 256, _ids, "max_stop_token_ids"),
    Bound("stop_token_ids", 256, _ids, "max_stop_token_ids"),
    Bound("stop_token_ids_visible", 256, _ids, "max_stop_token_ids"),
    Bound("stop_token_ids_hidden", 256, _ids, "max_stop_token_ids"),
    Bound("logprob_token_ids", 256, _ids, "max_stop_token_ids", "selected_logprobs"),
    Bound("logit_bias", 1024, _biases, "max_logit_bias", "logit_bias", unique=True),
    Bound("allowed_token_ids", 65536, _ids, "max_allowed_token_ids", "allowed_token_ids"),
    Bound("bad_words_token_ids", 1024, _words, "max_bad_words", "bad_words"),
    Bound("annotations", 64, lambda count: ["x" * 1024] * count),
    Bound("annotations", 1024, lambda count: ["x" * count]),
    Bound("stop", 32, lambda count: ["never to be seen"] * count, capability="stop_strings"),
    Bound("stop", 1024, lambda count: ["x" * count], capability="stop_strings"),
    Bound("extra_args", 65536, lambda count: b'{"": "%s"}' % (b"x" * (count - 8))),
)
"""What docs/contract.md bounds, but for what has an id of its own: `n`, `logprobs`, the prompt."""

RANGES: Final[tuple[tuple[str, str, tuple[Value, ...]], ...]] = (
    ("temperature", "", (0.0, 0.001, 100.0)),
    ("top_p", "", (1e-6, 1.0)),
    ("top_k", "", (-1, 0, 1)),
    ("min_p", "min_p", (0.0, 1.0)),
    ("presence_penalty", "penalties", (-2.0, 2.0)),
    ("frequency_penalty", "penalties", (-2.0, 2.0)),
    ("repetition_penalty", "penalties", (0.01, 10.0)),
    (
        "logit_bias",
        "logit_bias",
        ([pb.LogitBias(token_id=0, bias=-100), pb.LogitBias(token_id=1, bias=100)],),
    ),
    ("stream_interval", "", (1, 2**32 - 1)),
    ("max_tokens", "", (1,)),
    ("seed", "seed", (0, 2**64 - 1)),
)
"""Field, the capability it needs, and the values at the ends of the range in its comment."""
