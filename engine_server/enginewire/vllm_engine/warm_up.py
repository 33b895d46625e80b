"""The first request of a life, which nobody waits for."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb

TOKENS: Final = 4
"""Enough for a prompt and steps of one token."""


def warm_up_request(config: pb.EngineConfig) -> pb.PreprocessedRequest:
    """One that uses what `config` offers, as far as one request can, and is found in no cache."""
    can = config.capabilities
    token_id = config.vocab_size // 2
    request = pb.PreprocessedRequest(token_ids=[token_id] * TOKENS, is_probe=True)
    request.stop_conditions.max_tokens = TOKENS
    request.stop_conditions.min_tokens = TOKENS
    sampling = request.sampling_options
    sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed = 1.0, 0.9, 8, 1
    sampling.repetition_penalty, sampling.frequency_penalty = 1.1, 0.1
    sampling.bad_words_token_ids.add(token_ids=[token_id, token_id])
    if can.min_p:
        sampling.min_p = 0.01
    if can.logit_bias:
        sampling.logit_bias.add(token_id=token_id, bias=1.0)
    request.output_options.logprobs = 1
    if can.prompt_logprobs:
        request.output_options.prompt_logprobs = 1
    return request
