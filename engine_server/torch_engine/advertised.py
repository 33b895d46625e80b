"""What the engine says about itself: capabilities and limits, only where they work.

Knows nothing about threads or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.torch_engine.generation_config import GenerationDefaults
from engine_server.torch_engine.options import TorchEngineOptions
from engine_server.torch_engine.request_reader import RequestLimits
from engine_server.torch_engine.step_thread import LoadSnapshot
from enginewire import v1 as pb

if TYPE_CHECKING:
    from engine_server.torch_engine.loading import LoadedEngine

GUIDED_MODES = (
    pb.GUIDED_MODE_JSON_SCHEMA,
    pb.GUIDED_MODE_REGEX,
    pb.GUIDED_MODE_CHOICE,
    pb.GUIDED_MODE_EBNF_GRAMMAR,
    pb.GUIDED_MODE_STRUCTURAL_TAG,
    pb.GUIDED_MODE_JSON_OBJECT,
)


def engine_config(
    options: TorchEngineOptions, loaded: LoadedEngine, limits: RequestLimits
) -> pb.EngineConfig:
    """Everything `start` reports."""
    scheduler = loaded.core.scheduler
    return pb.EngineConfig(
        model=options.model,
        served_model_name=options.served_model_name,
        context_length=loaded.context_length,
        kv_cache_block_size=scheduler.pool.block_size,
        total_kv_blocks=scheduler.pool.num_blocks,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        vocab_size=loaded.config.vocab_size,
        eos_token_ids=loaded.defaults.eos_token_ids,
        role=pb.ENGINE_ROLE_AGGREGATED,
        capabilities=_capabilities(loaded),
        limits=_limits(limits),
    )


def load_message(snapshot: LoadSnapshot, num_submitted: int) -> pb.Load:
    """The load, counting requests that were submitted after the last step as waiting."""
    return pb.Load(
        running=snapshot.running,
        waiting=snapshot.waiting + max(num_submitted - snapshot.requests_added, 0),
        waiting_tokens=snapshot.waiting_tokens,
        kv_blocks_used=snapshot.blocks_used,
        kv_blocks_total=snapshot.blocks_total,
        step=snapshot.steps,
        preemptions=snapshot.preemptions,
        requests_finished=snapshot.requests_finished,
        tokens_generated=snapshot.tokens_generated,
    )


def _capabilities(loaded: LoadedEngine) -> pb.Capabilities:
    return pb.Capabilities(
        seed=True,
        multiple_choices=True,
        best_of=True,
        min_p=True,
        penalties=True,
        logit_bias=True,
        allowed_token_ids=True,
        bad_words=True,
        logprobs=True,
        selected_logprobs=True,
        guided_modes=GUIDED_MODES if loaded.grammars else (),
        resume=True,
        priority=True,
        tokenizer=loaded.tokenizer is not None,
        default_sampling=_defaults(loaded.defaults),
    )


def _defaults(defaults: GenerationDefaults) -> pb.SamplingDefaults:
    return pb.SamplingDefaults(
        temperature=defaults.temperature,
        top_p=defaults.top_p,
        top_k=defaults.top_k,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
    )


def _limits(limits: RequestLimits) -> pb.Limits:
    return pb.Limits(
        max_prompt_tokens=min(limits.context_length - 1, limits.kv_capacity),
        max_n=limits.max_n,
        max_logprobs=min(limits.max_logprobs, limits.vocab_size),
    )
