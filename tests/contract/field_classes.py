"""Who reads which field of PreprocessedRequest.

Every field belongs to exactly one class; an entry covers everything below it. `test_field_classes` walks the
descriptors, so that a new field cannot be forgotten. docs/contract.md prints this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class FieldClass(Enum):
    """Who reads a field."""

    ENGINE = "engine"
    """The engine honours it or rejects the request; never ignored silently."""
    BACKEND = "backend"
    """The backend evaluates it and removes it; an engine without `stop_strings` rejects it."""
    OPAQUE = "opaque"
    """For routers and frontends, or engine-specific: carried along, checked for size and form only."""


_ENGINE = (
    "model",
    "token_ids",
    "prompt_embeds",
    "multi_modal_data",
    "stop_conditions.max_tokens",
    "stop_conditions.min_tokens",
    "stop_conditions.stop_token_ids",
    "stop_conditions.stop_token_ids_visible",
    "stop_conditions.stop_token_ids_hidden",
    "stop_conditions.ignore_eos",
    "stop_conditions.max_thinking_tokens",
    "sampling_options.n",
    "sampling_options.best_of",
    "sampling_options.presence_penalty",
    "sampling_options.frequency_penalty",
    "sampling_options.repetition_penalty",
    "sampling_options.temperature",
    "sampling_options.top_p",
    "sampling_options.top_k",
    "sampling_options.min_p",
    "sampling_options.use_beam_search",
    "sampling_options.length_penalty",
    "sampling_options.seed",
    "sampling_options.guided_decoding",
    "sampling_options.logit_bias",
    "sampling_options.allowed_token_ids",
    "sampling_options.bad_words_token_ids",
    "output_options.logprobs",
    "output_options.prompt_logprobs",
    "output_options.logprob_token_ids",
    "output_options.stream_interval",
    "eos_token_ids",
    "routing.dp_rank",
    "routing.lora_name",
    "routing.priority",
    "routing.priority_jump",
    "prefill_result.handoff",
    "prefill_result.prompt_tokens_details",
    "bootstrap_info",
    "is_probe",
    "resume",
    "cache_salt",
    "bypass_prefix_cache",
)

_BACKEND = (
    "stop_conditions.stop",
    "sampling_options.include_stop_str_in_output",
    "output_options.skip_special_tokens",
    "output_options.formatted_prompt",
    "output_options.return_tokens_as_token_ids",
)

_OPAQUE = (
    "mm_routing_info",
    "mm_processor_kwargs",
    "mdc_sum",
    "annotations",
    "routing.backend_instance_id",
    "routing.prefill_worker_id",
    "routing.decode_worker_id",
    "routing.prefill_dp_rank",
    "routing.expected_output_tokens",
    "routing.allowed_worker_ids",
    "routing.routing_constraints",
    "routing.session_control",
    "routing.routing_key",
    "router_config_override",
    "prefill_result.disaggregated_params",
    "migration_link",
    "extra_args",
    "router",
    "agent_context",
    "request_timestamp_ms",
)

FIELD_CLASSES: Mapping[str, FieldClass] = {
    **dict.fromkeys(_ENGINE, FieldClass.ENGINE),
    **dict.fromkeys(_BACKEND, FieldClass.BACKEND),
    **dict.fromkeys(_OPAQUE, FieldClass.OPAQUE),
}


def field_class(path: str) -> FieldClass:
    """The class of a field or of the nearest entry above it. Raises KeyError when there is none."""
    entry = path
    while entry not in FIELD_CLASSES:
        entry, dot, _ = entry.rpartition(".")
        if not dot:
            raise KeyError(path)
    return FIELD_CLASSES[entry]
