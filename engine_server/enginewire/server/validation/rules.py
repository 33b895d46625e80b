"""The rules for requests that are data: ranges, capabilities, limits, token ids, opaque JSON.

Paths are fields of PreprocessedRequest; names of bounds are attributes of `Bounds`. What to do with
the rules is in `generate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from enginewire import v1 as pb
from enginewire.server.validation.fields import RequestField, request_field

CONTRACT_LIMITS = pb.Limits(
    max_n=128,
    max_logprobs=20,
    max_prompt_logprobs=20,
    max_stop_token_ids=256,
    max_logit_bias=1024,
    max_allowed_token_ids=65_536,
    max_bad_words=1024,
)
"""Used where an engine sets no limit of its own, so that every list a caller can send is bounded."""

UNBOUNDED = 2**32


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers one engine measures requests by."""

    vocab_size: int
    context_length: int
    max_prompt_tokens: int
    max_n: int
    max_logprobs: int
    max_prompt_logprobs: int
    max_stop_token_ids: int
    max_logit_bias: int
    max_allowed_token_ids: int
    max_bad_words: int

    @classmethod
    def of(cls, config: pb.EngineConfig) -> Self:
        """The bounds an engine advertised, or the contract's."""
        limits = effective_limits(config)
        return cls(
            vocab_size=config.vocab_size,
            context_length=config.context_length if config.HasField("context_length") else UNBOUNDED,
            max_prompt_tokens=limits.max_prompt_tokens if limits.HasField("max_prompt_tokens") else UNBOUNDED,
            max_n=limits.max_n,
            max_logprobs=min(limits.max_logprobs, config.vocab_size),
            max_prompt_logprobs=min(limits.max_prompt_logprobs, config.vocab_size),
            max_stop_token_ids=limits.max_stop_token_ids,
            max_logit_bias=limits.max_logit_bias,
            max_allowed_token_ids=limits.max_allowed_token_ids,
            max_bad_words=limits.max_bad_words,
        )


def effective_limits(config: pb.EngineConfig) -> pb.Limits:
    """What the engine advertised, and the contract's limits where it said nothing."""
    limits = pb.Limits()
    limits.CopyFrom(CONTRACT_LIMITS)
    limits.MergeFrom(config.limits)
    return limits


class Rule:
    """A rule about one field."""

    __slots__ = ("field",)

    def __init__(self, path: str) -> None:
        self.field: RequestField = request_field(path)


class Range(Rule):
    """A number in [low, high], or in (low, high] when `above_low`. Holds for every engine."""

    __slots__ = ("above_low", "high", "low")

    def __init__(self, path: str, low: float, high: float = math.inf, *, above_low: bool = False) -> None:
        super().__init__(path)
        self.low, self.high, self.above_low = low, high, above_low

    def holds(self, value: float) -> bool:
        """True when `value` is in the range."""
        return self.low <= value <= self.high and not (self.above_low and value == self.low)

    def __str__(self) -> str:
        end = f"{self.high:g}]" if math.isfinite(self.high) else "inf)"
        return f"{'(' if self.above_low else '['}{self.low:g}, {end}"


class Gate(Rule):
    """A field that needs a capability, unless its value is `neutral`: the one that changes nothing."""

    __slots__ = ("capability", "neutral")

    def __init__(self, path: str, capability: str, neutral: float | str | None = None) -> None:
        super().__init__(path)
        if capability not in pb.Capabilities.DESCRIPTOR.fields_by_name:
            raise KeyError(capability)
        self.capability, self.neutral = capability, neutral


class Limit(Rule):
    """A number, or a count of entries, that is at most a bound."""

    __slots__ = ("bound",)

    def __init__(self, path: str, bound: str) -> None:
        super().__init__(path)
        self.bound = bound


RANGES = (
    Range("stop_conditions.max_tokens", 1),
    Range("sampling_options.n", 1),
    Range("sampling_options.best_of", 1),
    Range("sampling_options.temperature", 0, 100),
    Range("sampling_options.top_p", 0, 1, above_low=True),
    Range("sampling_options.top_k", -1),
    Range("sampling_options.min_p", 0, 1),
    Range("sampling_options.presence_penalty", -2, 2),
    Range("sampling_options.frequency_penalty", -2, 2),
    Range("sampling_options.repetition_penalty", 0, 10, above_low=True),
    Range("output_options.stream_interval", 1),
    Range("bootstrap_info.bootstrap_port", 1, 65_535),
)

GATES = (
    Gate("prompt_embeds", "prompt_embeds"),
    Gate("resume", "resume"),
    Gate("stop_conditions.max_thinking_tokens", "max_thinking_tokens"),
    Gate("sampling_options.seed", "seed"),
    Gate("sampling_options.n", "multiple_choices", neutral=1),
    Gate("sampling_options.use_beam_search", "beam_search", neutral=False),
    Gate("sampling_options.length_penalty", "beam_search", neutral=1.0),
    Gate("sampling_options.min_p", "min_p", neutral=0.0),
    Gate("sampling_options.presence_penalty", "penalties", neutral=0.0),
    Gate("sampling_options.frequency_penalty", "penalties", neutral=0.0),
    Gate("sampling_options.repetition_penalty", "penalties", neutral=1.0),
    Gate("sampling_options.logit_bias", "logit_bias"),
    Gate("sampling_options.allowed_token_ids", "allowed_token_ids"),
    Gate("sampling_options.bad_words_token_ids", "bad_words"),
    Gate("sampling_options.guided_decoding", "guided_modes"),
    Gate("output_options.logprobs", "logprobs"),
    Gate("output_options.prompt_logprobs", "prompt_logprobs"),
    Gate("output_options.logprob_token_ids", "selected_logprobs"),
    Gate("multi_modal_data", "multi_modal_part_types"),
    Gate("mm_processor_kwargs", "multi_modal_part_types"),
    Gate("routing.lora_name", "lora", neutral=""),
    Gate("routing.priority", "priority", neutral=0),
    Gate("routing.priority_jump", "priority", neutral=0.0),
    # Text belongs to the backend, which removes these before it calls an engine.
    Gate("stop_conditions.stop", "stop_strings"),
    Gate("sampling_options.include_stop_str_in_output", "stop_strings"),
    Gate("output_options.skip_special_tokens", "stop_strings"),
    Gate("output_options.formatted_prompt", "stop_strings"),
    Gate("output_options.return_tokens_as_token_ids", "stop_strings"),
)

LIMITS = (
    Limit("sampling_options.n", "max_n"),
    Limit("sampling_options.best_of", "max_n"),
    Limit("sampling_options.top_k", "vocab_size"),
    Limit("sampling_options.logit_bias", "max_logit_bias"),
    Limit("sampling_options.allowed_token_ids", "max_allowed_token_ids"),
    Limit("sampling_options.bad_words_token_ids", "max_bad_words"),
    Limit("output_options.logprobs", "max_logprobs"),
    Limit("output_options.prompt_logprobs", "max_prompt_logprobs"),
    Limit("output_options.logprob_token_ids", "max_stop_token_ids"),
    Limit("eos_token_ids", "max_stop_token_ids"),
    Limit("stop_conditions.stop_token_ids", "max_stop_token_ids"),
    Limit("stop_conditions.stop_token_ids_visible", "max_stop_token_ids"),
    Limit("stop_conditions.stop_token_ids_hidden", "max_stop_token_ids"),
    Limit("resume.choices", "max_n"),
)

TOKEN_IDS = tuple(
    Rule(path)
    for path in (
        "token_ids",
        "eos_token_ids",
        "stop_conditions.stop_token_ids",
        "stop_conditions.stop_token_ids_visible",
        "stop_conditions.stop_token_ids_hidden",
        "sampling_options.allowed_token_ids",
        "output_options.logprob_token_ids",
    )
)

JSON_OBJECTS = tuple(
    Rule(path)
    for path in ("extra_args", "mm_processor_kwargs", "router_config_override.extra", "agent_context.extra")
)

JSON_VALUES = (Rule("prefill_result.disaggregated_params"),)
