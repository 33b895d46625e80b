"""For each capability the request that uses it and nothing else.

One table for two sides: what is advertised must work (INF-09), what is not must be refused (ERR-17).
Capabilities with RPCs of their own are not here: their areas say what uses them.
"""

from __future__ import annotations

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
