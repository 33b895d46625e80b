"""Is this what an engine may say about itself? Every rule of the contract about `EngineConfig`, at the start.

A fault is a sentence that names the field. Knows nothing about requests.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from typing import Final

from enginewire import v1 as pb
from enginewire.server.engines.interface import EmbeddingEngine, LLMEngine, PrefixCacheEngine, Tokenizer

MAY_BE_ZERO: Final = frozenset(
    {"data_parallel_start_rank", "max_logprobs", "max_prompt_logprobs", "max_num_queued_reqs"}
)
"""Optional fields whose 0 has a meaning of its own; of all others it is a way to say nothing."""

MAX_PORT: Final = 65_535


class InvalidEngineConfig(ValueError):
    """An engine started with facts that no server may advertise; the message names the field."""


def check_config(config: object, engine: LLMEngine) -> None:
    """Return if `engine`, which has started, may be served with `config`, else raise InvalidEngineConfig."""
    if not isinstance(config, pb.EngineConfig):
        raise InvalidEngineConfig(f"start must return an EngineConfig, got {type(config).__name__}")
    for fault in (*_faults(config), *_faults_of_load(config, engine), *_untrue_capabilities(config, engine)):
        raise InvalidEngineConfig(f"EngineConfig.{fault}")


def _faults(config: pb.EngineConfig) -> Iterator[str]:
    if not config.model:
        yield "model: must not be empty"
    if not config.vocab_size:
        yield "vocab_size: must be set; every token id is below it"
    yield from _zeros(config)
    names = [config.served_model_name or config.model, *config.aliases]
    if not all(names) or len(set(names)) < len(names):
        yield f"aliases: each must be a name of its own, got {names}"
    if config.HasField("context_length") and config.context_length < 2:
        yield f"context_length: must have room for prompt and output, got {config.context_length}"
    wrong = [token_id for token_id in config.eos_token_ids if token_id >= config.vocab_size]
    if wrong:
        yield f"eos_token_ids: must be below vocab_size {config.vocab_size}, got {wrong}"
    if config.role not in pb.EngineRole.values() or not config.role:
        yield "role: must be set, for example to ENGINE_ROLE_AGGREGATED"
    if config.HasField("kv_cache_block_size") != config.HasField("total_kv_blocks"):
        yield "total_kv_blocks: goes with kv_cache_block_size, got one of the two"
    yield from _faults_of_rendezvous(config)
    if pb.GUIDED_MODE_UNSPECIFIED in config.capabilities.guided_modes:
        yield "capabilities.guided_modes: GUIDED_MODE_UNSPECIFIED is not a mode"
    if config.capabilities.HasField("default_sampling"):
        yield from _faults_of_sampling(config.capabilities.default_sampling)


def _zeros(config: pb.EngineConfig) -> Iterator[str]:
    for prefix, message in (("", config), ("limits.", config.limits)):
        for field, value in message.ListFields():
            is_optional = field.has_presence and not field.message_type
            if is_optional and not value and field.name not in MAY_BE_ZERO:
                yield f"{prefix}{field.name}: leave it out where nothing is known or bounded, got {value!r}"


def _faults_of_rendezvous(config: pb.EngineConfig) -> Iterator[str]:
    if not config.HasField("bootstrap_host"):
        return
    if _is_wildcard(config.bootstrap_host):
        yield f"bootstrap_host: must be an address that others can route to, got {config.bootstrap_host}"
    if not 1 <= config.bootstrap_port <= MAX_PORT:
        yield f"bootstrap_port: must be from 1 to {MAX_PORT}, got {config.bootstrap_port}"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == "*"


def _faults_of_sampling(default: pb.SamplingDefaults) -> Iterator[str]:
    """A value outside of the range that requests have to keep."""
    ranges = {
        "temperature": 0 <= default.temperature <= 100,
        "top_p": 0 < default.top_p <= 1,
        "top_k": default.top_k >= -1,
        "min_p": 0 <= default.min_p <= 1,
        "repetition_penalty": 0 < default.repetition_penalty <= 10,
    }
    for name, holds in ranges.items():
        value: float = getattr(default, name)
        if not holds or not math.isfinite(value):
            yield f"capabilities.default_sampling.{name}: not in its range, got {value:g}"


def _faults_of_load(config: pb.EngineConfig, engine: LLMEngine) -> Iterator[str]:
    load = engine.load()
    if not isinstance(load, pb.Load):
        yield f"load: the engine's load must return a Load, got {type(load).__name__}"
    elif config.HasField("total_kv_blocks"):
        total = config.total_kv_blocks * max(config.data_parallel_size, 1)
        if load.kv_blocks_total != total:
            says = f"Load.kv_blocks_total is {load.kv_blocks_total}"
            yield f"total_kv_blocks: makes {total} blocks on all ranks, but {says}"


def _untrue_capabilities(config: pb.EngineConfig, engine: LLMEngine) -> Iterator[str]:
    capabilities = config.capabilities
    tokenizer: object = engine.tokenizer()
    if capabilities.tokenizer != (tokenizer is not None):
        yield "capabilities.tokenizer: must be true exactly when the engine's tokenizer returns one"
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        got = type(tokenizer).__name__
        yield f"capabilities.tokenizer: tokenizer must return a Tokenizer or None, got {got}"
    elif tokenizer is not None and not _are_files(tokenizer.files):
        yield "capabilities.tokenizer: Tokenizer.files must be a mapping from names (str) to contents (bytes)"
    if capabilities.kv_events and not isinstance(engine, PrefixCacheEngine):
        yield "capabilities.kv_events: needs subscribe_kv_events and reset_prefix_cache"
    if capabilities.embeddings and not (isinstance(engine, EmbeddingEngine) and engine.embedding_size):
        yield "capabilities.embeddings: needs embed, only_embeds and an embedding_size"


def _are_files(files: object) -> bool:
    return isinstance(files, Mapping) and all(
        isinstance(name, str) and isinstance(content, bytes) for name, content in files.items()
    )
