"""What this server says of the engine behind it: the engine's own facts, as far as they can be kept here.

A capability is carried when a request uses it by its fields and an answer shows it in its own. What needs an
RPC, or a refusal before acceptance that only the engine can give, is not. Knows nothing about connections.
"""

from __future__ import annotations

import logging
from typing import Final

from enginewire import v1 as pb
from enginewire.server.validation.bounds import CONTRACT_LIMITS

log = logging.getLogger(__name__)

CARRIED: Final = frozenset(
    {
        "seed",
        "multiple_choices",
        "best_of",
        "beam_search",
        "min_p",
        "penalties",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "logprobs",
        "prompt_logprobs",
        "selected_logprobs",
        "stop_strings",
        "max_thinking_tokens",
        "prompt_embeds",
        "multi_modal_part_types",
        "resume",
        "batch_invariant",
        "annotations",
        "default_sampling",
    }
)

OWN: Final = frozenset({"multiplexed", "metrics", "cleanup", "watch_load"})
"""Capabilities that this server has whatever the engine says."""

FACTS: Final = (
    *("model", "served_model_name", "aliases", "context_length", "kv_cache_block_size", "total_kv_blocks"),
    *("max_num_seqs", "max_num_batched_tokens", "vocab_size", "eos_token_ids"),
)

LIMITS: Final = (
    *("max_prompt_tokens", "max_n", "max_logprobs", "max_prompt_logprobs", "max_stop_token_ids"),
    *("max_logit_bias", "max_allowed_token_ids", "max_bad_words"),
)
"""Those of requests. The others are of a server, and this one has its own."""

NEUTRAL: Final = pb.SamplingDefaults(temperature=1.0, top_p=1.0, repetition_penalty=1.0)
"""Of an engine that names no defaults: the model's own distribution."""


class NotBare(Exception):
    """What answers there cannot be served as a bare engine; the message says why."""


def config_of(info: pb.GetEngineInfoResponse, max_num_seqs: int) -> pb.EngineConfig:
    """The config to serve with; `max_num_seqs` where the engine says nothing. Raises NotBare."""
    theirs = info.config
    if theirs.role not in (pb.ENGINE_ROLE_UNSPECIFIED, pb.ENGINE_ROLE_AGGREGATED):
        raise NotBare(f"its role is {_name(theirs.role)}; only an aggregated engine can be served")
    if theirs.data_parallel_size > 1:
        raise NotBare(f"it has {theirs.data_parallel_size} data-parallel ranks; give each rank a server")
    ours = pb.EngineConfig(max_num_seqs=max_num_seqs, role=pb.ENGINE_ROLE_AGGREGATED)
    _copy(theirs, ours, FACTS)
    _copy(theirs.limits, ours.limits, LIMITS)
    _copy(theirs.capabilities, ours.capabilities, CARRIED)
    # All choices of a request are one call, and the engine shall never see more than it has slots for.
    ours.limits.max_n = min(ours.limits.max_n or CONTRACT_LIMITS.max_n, ours.max_num_seqs)
    if not ours.capabilities.HasField("default_sampling"):
        ours.capabilities.default_sampling.CopyFrom(NEUTRAL)
    _tell_what_is_left_out(theirs.capabilities)
    return ours


def _copy(
    theirs: pb.EngineConfig | pb.Limits | pb.Capabilities,
    ours: pb.EngineConfig | pb.Limits | pb.Capabilities,
    names: frozenset[str] | tuple[str, ...],
) -> None:
    wanted = type(theirs)()
    wanted.CopyFrom(theirs)  # type: ignore[arg-type]  # of its own type
    for field, _ in theirs.ListFields():
        if field.name not in names:
            wanted.ClearField(field.name)  # type: ignore[arg-type]  # a field of it
    ours.MergeFrom(wanted)  # type: ignore[arg-type]  # both are of one type


def _tell_what_is_left_out(theirs: pb.Capabilities) -> None:
    names = [field.name for field, _ in theirs.ListFields() if field.name not in CARRIED | OWN]
    if names:
        log.warning("the engine's %s cannot be served through this server", ", ".join(names))


def _name(role: int) -> str:
    return pb.EngineRole.Name(role) if role in pb.EngineRole.values() else str(role)  # type: ignore[arg-type]  # looked up
