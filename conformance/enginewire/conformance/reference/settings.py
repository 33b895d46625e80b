"""What a reference server says about itself, and how fast it is. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from enginewire import v1 as pb

HIDDEN_SIZE = 8
"""Numbers in a row of prompt_embeds."""

KEEPALIVE_MS = 500
"""Between two pings of a caller."""

CAPABILITIES = (
    "cleanup",
    "multiplexed",
    "seed",
    "multiple_choices",
    "min_p",
    "penalties",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logprobs",
    "prompt_logprobs",
    "prompt_embeds",
    "selected_logprobs",
    "prefix_cache",
    "resume",
    "priority",
    "batch_invariant",
    "max_thinking_tokens",
    "embeddings",
    "kv_events",
    "lora",
    "metrics",
    "stop_strings",
    "tokenizer",
    "watch_load",
)
"""What the reference can do; a mutant may leave some out."""


ANNOTATIONS = ("reference.note",)
"""Annotations that are answered, with what is behind their colons."""

GUIDED_MODES = (pb.GUIDED_MODE_JSON_SCHEMA, pb.GUIDED_MODE_REGEX, pb.GUIDED_MODE_CHOICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Facts and speed of one server.

    A token takes some time by default: what fills the slots then costs waiting, not computing.
    """

    step_seconds: float = 0.002
    first_token_seconds: float = 0.0
    start_seconds: float = 0.0
    capabilities: tuple[str, ...] = CAPABILITIES
    vocab_size: int = 128
    eos_token_ids: tuple[int, ...] = (2,)
    thinking_token_ids: tuple[int, int] = (3, 4)
    """They open and close a section."""
    context_length: int = 2048
    block_size: int = 16
    total_blocks: int = 1024
    max_num_seqs: int = 8
    max_queued: int = 64
    ranks: int = 1
    buffer_tokens: int = 512
    max_request_bytes: int = 4 * 1024 * 1024
    shutdown_seconds: float = 30.0
    role: pb.EngineRole.ValueType = pb.ENGINE_ROLE_AGGREGATED
    guided_modes: tuple[pb.GuidedMode.ValueType, ...] = GUIDED_MODES
    annotations: tuple[str, ...] = ANNOTATIONS
    limits: dict[str, int] = field(default_factory=dict)

    def config(self) -> pb.EngineConfig:
        """The EngineConfig of such a server."""
        capabilities = pb.Capabilities(**dict.fromkeys(self.capabilities, True))  # type: ignore[arg-type]  # flags
        capabilities.guided_modes.extend(self.guided_modes)
        capabilities.annotations.extend(self.annotations)
        capabilities.default_sampling.MergeFrom(
            pb.SamplingDefaults(temperature=1.0, top_p=1.0, repetition_penalty=1.0)
        )
        limits = pb.Limits(
            max_n=10,
            max_logprobs=8,
            max_loras=3,
            max_prompt_logprobs=8,
            max_num_queued_reqs=self.max_queued,
            max_stream_buffer_tokens=self.buffer_tokens,
            max_request_bytes=self.max_request_bytes,
            min_keepalive_interval_ms=KEEPALIVE_MS,
        )
        limits.MergeFrom(pb.Limits(**self.limits))
        return pb.EngineConfig(
            data_parallel_size=self.ranks if self.ranks > 1 else None,
            model="reference",
            served_model_name="shown",
            context_length=self.context_length,
            kv_cache_block_size=self.block_size,
            total_kv_blocks=self.total_blocks,
            max_num_seqs=self.max_num_seqs,
            vocab_size=self.vocab_size,
            eos_token_ids=self.eos_token_ids,
            role=self.role,
            capabilities=capabilities,
            limits=limits,
            metrics_ranks=[0] if capabilities.metrics else [],
            hidden_size=HIDDEN_SIZE if capabilities.prompt_embeds else None,
        )


def without(*capabilities: str) -> Settings:
    """Those of a server that lacks these capabilities."""
    return replace(Settings(), capabilities=tuple(set(CAPABILITIES) - set(capabilities)))
