"""What the engine says about itself: capabilities and limits, only where they work.

Knows nothing about threads or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginewire import v1 as pb
from enginewire.server.handoff.requests import ENGINE_ROLES
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.limits import RequestLimits

if TYPE_CHECKING:
    from enginewire.torch_engine.loading.warm_up import LoadedEngine

GUIDED_MODES = {
    "json_schema": pb.GUIDED_MODE_JSON_SCHEMA,
    "regex": pb.GUIDED_MODE_REGEX,
    "choice": pb.GUIDED_MODE_CHOICE,
    "ebnf_grammar": pb.GUIDED_MODE_EBNF_GRAMMAR,
    "structural_tag": pb.GUIDED_MODE_STRUCTURAL_TAG,
    "json_object": pb.GUIDED_MODE_JSON_OBJECT,
}


def engine_config(
    options: TorchEngineOptions, loaded: LoadedEngine, limits: RequestLimits
) -> pb.EngineConfig:
    """Everything `start` reports."""
    scheduler = loaded.core.scheduler
    config = pb.EngineConfig(
        model=options.model,
        served_model_name=options.served_model_name,
        context_length=loaded.context_length,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        vocab_size=loaded.config.vocab_size,
        role=ENGINE_ROLES[options.role],
    )
    if loaded.embedding and loaded.embedding.is_all:
        config.capabilities.embeddings = True
        config.capabilities.tokenizer = loaded.tokenizer is not None
        config.limits.max_prompt_tokens = loaded.context_length
        return config
    config.kv_cache_block_size = scheduler.pool.block_size
    config.total_kv_blocks = scheduler.pool.num_blocks
    config.eos_token_ids.extend(loaded.defaults.eos_token_ids)
    config.capabilities.CopyFrom(_capabilities(loaded, limits))
    config.capabilities.batch_invariant = options.batch_invariant
    if config.capabilities.prompt_embeds and limits.embedding_width:
        config.hidden_size = limits.embedding_width
    config.limits.CopyFrom(_limits(limits, options.max_loras))
    return config


def _capabilities(loaded: LoadedEngine, limits: RequestLimits) -> pb.Capabilities:
    # What needs more of a prompt than its KV is not split between two engines.
    does_all = limits.role == "aggregated"
    return pb.Capabilities(
        seed=True,
        multiple_choices=True,
        best_of=True,
        beam_search=does_all,
        min_p=True,
        penalties=True,
        logit_bias=True,
        allowed_token_ids=True,
        bad_words=True,
        logprobs=True,
        prompt_logprobs=does_all and limits.max_prompt_logprobs >= 0,
        selected_logprobs=True,
        guided_modes=[GUIDED_MODES[kind] for kind in loaded.grammars.kinds] if loaded.grammars else (),
        max_thinking_tokens=limits.thinking is not None,
        prompt_embeds=does_all and limits.embedding_width is not None,
        resume=True,
        priority=True,
        prefix_cache=limits.prefix_caching,
        kv_events=limits.prefix_caching,
        lora=loaded.adapted is not None,
        embeddings=loaded.embedding is not None,
        tokenizer=loaded.tokenizer is not None,
        default_sampling=loaded.defaults.sampling(),
    )


def _limits(limits: RequestLimits, max_loras: int) -> pb.Limits:
    return pb.Limits(
        max_prompt_tokens=limits.max_prompt_tokens,
        max_n=limits.max_n,
        max_logprobs=min(limits.max_logprobs, limits.vocab_size),
        max_loras=max_loras or None,
        max_prompt_logprobs=max(limits.max_prompt_logprobs, 0),
    )
