"""What the engine says about itself: read from the configuration that vLLM has come up with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from enginewire import v1 as pb
from enginewire.torch_engine.folder.folder import ModelFolder
from enginewire.torch_engine.folder.generation_config import GenerationDefaults, read_generation_defaults
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.vllm_engine.options import SPARE_LORAS

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

EMBED: Final = "embed"
"""What vLLM calls the task of a model that embeds."""
PICTURES: Final = "image_url"
"""What the contract calls the parts that are pictures."""
GUIDED_MODES = (
    pb.GUIDED_MODE_JSON_SCHEMA,
    pb.GUIDED_MODE_REGEX,
    pb.GUIDED_MODE_CHOICE,
    pb.GUIDED_MODE_EBNF_GRAMMAR,
    pb.GUIDED_MODE_STRUCTURAL_TAG,
    pb.GUIDED_MODE_JSON_OBJECT,
)


class Unservable(Exception):
    """vLLM came up with something that this engine cannot serve; the message is one line."""


def check_servable(config: VllmConfig) -> None:
    """Raise Unservable for what vLLM may be asked for and the contract cannot have of it, before it loads."""
    if only_embeds(config) and config.lora_config is not None:
        raise Unservable("--adapter-folder: not with a model that only embeds")
    if config.parallel_config.local_engines_only:
        raise Unservable("--data-parallel-rank and -hybrid-lb: one server has all ranks of vLLM behind it")


def only_embeds(config: VllmConfig) -> bool:
    """vLLM runs the model for its vectors, as `--runner` says or the folder."""
    return bool(config.model_config.runner_type == "pooling")


def dies_of_seeds(config: VllmConfig) -> bool:
    """vLLM 0.32 for CPUs does, where it splits the prompt of a sampled request."""
    return bool(config.device_config.device_type == "cpu" and config.scheduler_config.enable_chunked_prefill)


def fits_one_step(config: VllmConfig) -> bool:
    """No prompt is so long that vLLM has to split it."""
    return bool(config.model_config.max_model_len <= config.scheduler_config.max_num_batched_tokens)


def check_embeds(model: str, tasks: Sequence[str]) -> None:
    """Raise Unservable for a model that classifies or ranks."""
    if EMBED not in tasks:
        raise Unservable(f"{model}: a model that neither generates nor embeds")


def embedding_config(model: str, config: VllmConfig, *, has_tokenizer: bool) -> pb.EngineConfig:
    """What `start` reports of a model that only embeds. It holds no blocks for anybody."""
    made = pb.EngineConfig(
        model=model,
        context_length=config.model_config.max_model_len,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        vocab_size=config.model_config.get_vocab_size(),
        role=pb.ENGINE_ROLE_AGGREGATED,
    )
    made.capabilities.embeddings = True
    _tell_ranks(made, config)
    made.capabilities.tokenizer = has_tokenizer
    made.limits.max_prompt_tokens = made.context_length
    return made


def engine_config(
    model: str,
    config: VllmConfig,
    folder: ModelFolder,
    *,
    has_tokenizer: bool,
    tells_of_cache: bool,
    takes_pictures: bool,
) -> pb.EngineConfig:
    """Everything `start` reports; `model` is its name, `config` as it is once vLLM is ready."""
    cache, scheduler = config.cache_config, config.scheduler_config
    ranks = config.parallel_config.data_parallel_size
    # vLLM adds up those of all ranks, and each one keeps a block that is no request's.
    total_blocks = cache.num_gpu_blocks // ranks - 1
    context = min(config.model_config.max_model_len, total_blocks * cache.block_size)
    made = pb.EngineConfig(
        model=model,
        context_length=context,
        kv_cache_block_size=cache.block_size,
        total_kv_blocks=total_blocks,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        vocab_size=config.model_config.get_vocab_size(),
        eos_token_ids=_end_of_sequence(config.model_config),
        role=pb.ENGINE_ROLE_AGGREGATED,
    )
    limits = RequestLimits(made.vocab_size, context, total_blocks * cache.block_size)
    made.capabilities.CopyFrom(
        _capabilities(config, limits, has_tokenizer=has_tokenizer, tells_of_cache=tells_of_cache)
    )
    _tell_ranks(made, config)
    made.capabilities.multi_modal_part_types[:] = [PICTURES] if takes_pictures else []
    defaults = read_generation_defaults(folder, made.vocab_size)
    made.capabilities.default_sampling.CopyFrom(_defaults(config.model_config, defaults))
    made.limits.CopyFrom(_limits(config, limits))
    return made


def _tell_ranks(made: pb.EngineConfig, config: VllmConfig) -> None:
    ranks = config.parallel_config.data_parallel_size
    if ranks > 1:
        made.data_parallel_size, made.capabilities.data_parallel = ranks, True


def _capabilities(
    config: VllmConfig, limits: RequestLimits, *, has_tokenizer: bool, tells_of_cache: bool
) -> pb.Capabilities:
    # vLLM refuses these beside a draft model.
    does_all = config.speculative_config is None
    return pb.Capabilities(
        seed=not dies_of_seeds(config),
        multiple_choices=True,
        min_p=does_all,
        penalties=True,
        logit_bias=does_all,
        allowed_token_ids=True,
        bad_words=True,
        logprobs=True,
        # With adapters vLLM computes the logits of prompts as if they were those of outputs, and dies.
        prompt_logprobs=limits.max_prompt_logprobs >= 0 and config.lora_config is None,
        guided_modes=() if config.model_config.skip_tokenizer_init else GUIDED_MODES,
        prefix_cache=config.cache_config.enable_prefix_caching,
        kv_events=tells_of_cache,
        priority=config.scheduler_config.policy == "priority",
        lora=config.lora_config is not None,
        tokenizer=has_tokenizer,
    )


def _defaults(model: ModelConfig, of_folder: GenerationDefaults) -> pb.SamplingDefaults:
    given = model.get_diff_sampling_param()
    if model.generation_config == "auto" and "temperature" not in model.override_generation_config:
        # A folder that does not sample is greedy, which vLLM leaves out.
        given["temperature"] = of_folder.temperature
    return pb.SamplingDefaults(
        temperature=given.get("temperature", 1.0),
        top_p=given.get("top_p", 1.0),
        top_k=max(given.get("top_k", 0), 0),
        min_p=given.get("min_p", 0.0),
        repetition_penalty=given.get("repetition_penalty", 1.0),
    )


def _end_of_sequence(model: ModelConfig) -> list[int]:
    """Of the generation config, else of the model's own."""
    given = model.try_get_generation_config().get("eos_token_id")
    if given is None:
        given = getattr(model.hf_text_config, "eos_token_id", None)
    if given is None:
        return []
    return sorted(set(given)) if isinstance(given, list) else [given]


def _limits(config: VllmConfig, limits: RequestLimits) -> pb.Limits:
    model, adapters = config.model_config, config.lora_config
    most = limits.vocab_size if model.max_logprobs == -1 else model.max_logprobs
    return pb.Limits(
        max_prompt_tokens=limits.max_prompt_tokens,
        max_n=limits.max_n,
        max_loras=max(adapters.max_loras - SPARE_LORAS, 1) if adapters else None,
        max_logprobs=min(most, limits.max_logprobs, limits.vocab_size),
        max_prompt_logprobs=min(most, max(limits.max_prompt_logprobs, 0)),
    )
