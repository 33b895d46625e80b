"""What a `llama-server` says of itself, as the contract has it."""

from __future__ import annotations

import logging
from typing import Any, Final

from enginewire import v1 as pb
from enginewire.openai_engine.connection import Connection, Json
from enginewire.openai_engine.model import Model
from enginewire.server.engines.remote.watch import NoUpstream

log = logging.getLogger(__name__)

COMPLETION: Final = "/completion"
PROPS: Final = "/props"


async def config_of(
    connection: Connection, models: Json, props: Json, model: Model | None
) -> pb.EngineConfig:
    """All but the tokenizer. Raises NoUpstream for a server that says too little."""
    try:
        served = models["data"][0]
        config = pb.EngineConfig(
            model=served["id"],
            context_length=props["default_generation_settings"]["n_ctx"],
            max_num_seqs=props["total_slots"],
            vocab_size=served["meta"]["n_vocab"],
            role=pb.ENGINE_ROLE_AGGREGATED,
        )
        defaults = props["default_generation_settings"]["params"]
    except (KeyError, IndexError, TypeError) as error:
        raise NoUpstream(f"{PROPS} and /v1/models do not say {error}; a router of several models?") from error
    if model is not None and model.vocab_size != config.vocab_size:
        log.warning("the folder has %d token ids, the server %d", model.vocab_size, config.vocab_size)
    config.eos_token_ids.extend(await _end_of_generation(connection))
    config.limits.max_n = config.max_num_seqs
    config.capabilities.CopyFrom(
        pb.Capabilities(
            seed=True,
            multiple_choices=True,
            min_p=True,
            logit_bias=True,
            logprobs=True,
            resume=True,
            default_sampling=model.default_sampling if model else _default_sampling(defaults),
        )
    )
    config.capabilities.default_sampling.repetition_penalty = 1.0  # there are no penalties
    return config


async def identity_of(connection: Connection, seconds: float | None) -> object:
    """What changes with another model; newer servers draw the marker anew in each life."""
    props = await connection.get(PROPS, seconds)
    names = ("model_path", "total_slots", "media_marker", "build_info")
    return [props.get(name) for name in names]


async def _end_of_generation(connection: Connection) -> list[int]:
    """The ids at which the server ends an answer: those that it bars when told to ignore them."""
    body = {"prompt": [0], "n_predict": 1, "ignore_eos": True, "return_tokens": True, "cache_prompt": False}
    body["response_fields"] = ["tokens", "generation_settings"]
    answer = await connection.post(COMPLETION, body, seconds=60.0)
    if not answer.get("tokens"):
        raise NoUpstream("the server does not tell the ids of its tokens; llama.cpp does since build 4291")
    barred = answer["generation_settings"]["logit_bias"]
    return sorted({entry["token"] for entry in barred if entry["bias"] is None})


def _default_sampling(params: dict[str, Any]) -> pb.SamplingDefaults:
    return pb.SamplingDefaults(
        temperature=max(params["temperature"], 0.0),
        top_p=params["top_p"],
        top_k=max(params["top_k"], 0),
        min_p=params["min_p"],
        repetition_penalty=1.0,
    )
