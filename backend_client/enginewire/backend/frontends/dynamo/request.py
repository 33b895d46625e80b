"""From the dictionary that Dynamo's frontend sends to a request for an engine.

Sans-IO. Ranges are left to the engine, which knows them. What only the frontend or its router needs stays
here; whatever else cannot be carried is refused under its name. Knows nothing about answers.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.frontends.dynamo.fields import Fields, refused

STOP_FIELDS: Final = (
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "max_thinking_tokens",
    "stop_token_ids",
    "stop_token_ids_visible",
    "stop_token_ids_hidden",
)
SAMPLING_FIELDS: Final = (
    "n",
    "best_of",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "use_beam_search",
    "length_penalty",
)
# Dynamo's names of guides, with the contract's. The first two are JSON, as text or not.
JSON_GUIDES: Final = {"json": "json_schema", "structural_tag": "structural_tag"}
TEXT_GUIDES: Final = {"regex": "regex", "grammar": "ebnf_grammar"}
MAX_SEED: Final = 2**64
# The frontend makes the text, and its router has chosen this worker.
FRONTENDS_OWN: Final = frozenset(
    {
        "model",
        "annotations",
        "router",
        "router_config_override",
        "agent_context",
        "mm_routing_info",
        "kv_hint",
        "stop_conditions.stop",
        "sampling_options.include_stop_str_in_output",
        "output_options.skip_special_tokens",
        "output_options.formatted_prompt",
        "output_options.return_tokens_as_token_ids",
        "output_options.no_stop_trim",
        "routing.backend_instance_id",
        "routing.prefill_worker_id",
        "routing.decode_worker_id",
        "routing.prefill_dp_rank",
        "routing.allowed_worker_ids",
        "routing.routing_constraints",
        "routing.session_control",
        "routing.priority_jump",
        "routing.strict_priority",
        # What the caller wrote, beside what the frontend has made of it.
        "extra_args.nvext",
    }
)


def to_engine(asked: object) -> pb.PreprocessedRequest:
    """The same request for the engine. Raises RequestFailed, its field Dynamo's own."""
    fields, request = Fields(asked), pb.PreprocessedRequest()
    fields.put_value(request, "token_ids", token_ids_of(fields.take("token_ids")))
    fields.put(request, "eos_token_ids", "mdc_sum", "request_timestamp_ms")
    request.is_probe = bool(fields.take("_HEALTH_CHECK"))
    link = fields.group("migration_link")
    link.put(request.migration_link, "trace_id", "span_id")
    stops = fields.group("stop_conditions")
    stops.put(request.stop_conditions, *STOP_FIELDS)
    sampling = fields.group("sampling_options")
    fill_sampling(request.sampling_options, sampling)
    output = fields.group("output_options")
    output.put(request.output_options, "logprobs", "prompt_logprobs")
    routing = fields.group("routing")
    fill_routing(request, routing)
    refuse_reasoning(request, fields)
    for group in (link, stops, sampling, output, routing, fields.group("extra_args"), fields):
        group.refuse(FRONTENDS_OWN)
    return request


def token_ids_of(given: object) -> Sequence[int]:
    """The prompt, a list or packed as little-endian numbers of 32 bits. Raises RequestFailed."""
    if isinstance(given, list):
        return given
    if not isinstance(given, bytes) or len(given) % 4:
        raise refused("token_ids", "must be a list of ids, or ids of four bytes each")
    packed = array("I", given)
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tolist()


def fill_sampling(sampling: pb.SamplingOptions, fields: Fields) -> None:
    """How to choose tokens. Raises RequestFailed."""
    fields.put(sampling, *SAMPLING_FIELDS)
    seed = fields.take("seed")
    # Dynamo's seeds have a sign, the contract's have not.
    fields.put_value(sampling, "seed", seed % MAX_SEED if isinstance(seed, int) else seed)
    guided = fields.take("guided_decoding")
    if guided is not None:
        fill_guide(sampling.guided_decoding, Fields(guided, "sampling_options.guided_decoding."))


def fill_guide(guide: pb.GuidedDecoding, fields: Fields) -> None:
    """The grammar to follow. Raises RequestFailed, also for a second one."""
    given = [name for name in (*JSON_GUIDES, *TEXT_GUIDES, "choice") if fields.has(name)]
    if len(given) > 1:
        raise refused(f"sampling_options.guided_decoding.{given[1]}", f"cannot stand beside {given[0]}")
    for name, own_name in JSON_GUIDES.items():
        value = fields.take(name)
        is_text = value is None or isinstance(value, str)
        fields.put_value(guide, own_name, value if is_text else json.dumps(value), name)
    for name, own_name in TEXT_GUIDES.items():
        fields.put_value(guide, own_name, fields.take(name), name)
    if (choice := fields.take("choice")) is not None:
        fields.put_value(guide.choice, "choices", choice, "choice")
    fields.put(guide, "backend", "whitespace_pattern")
    fields.refuse()


def fill_routing(request: pb.PreprocessedRequest, fields: Fields) -> None:
    """What is the engine's of the router's hints. Raises RequestFailed."""
    fields.put(request.routing, "dp_rank", "lora_name", "expected_output_tokens")
    priority = fields.take("priority")
    # To Dynamo the larger number is the more urgent one.
    fields.put_value(request.routing, "priority", -priority if isinstance(priority, int) else priority)
    fields.put(request, "cache_salt")


def refuse_reasoning(request: pb.PreprocessedRequest, fields: Fields) -> None:
    """Raise RequestFailed for a guide that shall begin behind the thinking: here it begins at once."""
    if fields.take("require_reasoning") and request.sampling_options.HasField("guided_decoding"):
        raise refused("require_reasoning", "a guide cannot wait for the end of the thinking", is_valid=True)
