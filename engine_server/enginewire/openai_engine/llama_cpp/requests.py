"""Requests of the contract as bodies for `/completion`. Knows nothing about answers."""

from __future__ import annotations

import secrets
from typing import Any, Final

from enginewire import v1 as pb
from enginewire.openai_engine.connection import Json
from enginewire.openai_engine.seeds import seed_of

RANDOM: Final = 2**32 - 1
"""The seed that means none."""
LEAST_TEMPERATURE: Final = 0.01
LONG: Final = 32
"""Tokens of a pass. What its stream leaves out is computed again, so this bounds the work."""
NEUTRAL: Final[Json] = {
    # Whatever the server's own command line says: it holds for requests that do not.
    "samplers": ["temperature", "top_k", "top_p", "min_p"],
    "min_keep": 0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "backend_sampling": False,
    "post_sampling_probs": False,
    "grammar": "",
    "ignore_eos": False,
    "stop": [],
    "n_indent": 0,
    "t_max_predict_ms": -1,
    # A ping is no sign that the model computes.
    "sse_ping_interval": -1,
    "return_tokens": True,
    # Not the text: it may end within a character, which some builds cannot write as JSON.
    "response_fields": ["tokens", "stop", "tokens_predicted", "completion_probabilities"],
}


def body_of(
    request: pb.PreprocessedRequest, options: pb.SamplingOptions, known: list[int], seed: int, most: int
) -> dict[str, Any]:
    """Up to `most` tokens behind `known`; `options` have no gaps."""
    output = request.output_options
    return {
        **NEUTRAL,
        "prompt": list(known),
        "n_predict": most,
        "stream": True,
        "cache_prompt": True,
        "temperature": _temperature(options.temperature),
        "top_k": max(options.top_k, 0),
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": seed,
        "logit_bias": [[each.token_id, each.bias] for each in options.logit_bias],
        "n_probs": max(output.logprobs, 1) if output.HasField("logprobs") else 0,
    }


def is_alone(request: pb.PreprocessedRequest) -> bool:
    """Its prompt is computed, whatever the server has of it."""
    return request.bypass_prefix_cache or request.is_probe


def is_seeded(options: pb.SamplingOptions) -> bool:
    """Its random numbers are to be told from its seed alone."""
    return options.HasField("seed") and options.temperature > 0


def drawn_seed(options: pb.SamplingOptions, index: int, position: int) -> int:
    """That of a pass, which is never the one that means none."""
    given = seed_of(options, index, position)
    return (secrets.randbits(63) if given is None else given) % RANDOM


def _temperature(given: float) -> float:
    return max(given, LEAST_TEMPERATURE) if given else 0.0
