"""From SMG's GenerateRequest to a request for the backend.

Sans-IO. In SMG's sampling parameters 0 stands for "not set" wherever the field has no presence. Ranges
are left to the engine, which knows them. Knows nothing about answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.backend.prompting.prompts import InvalidPrompt

INPUT: Final = "tokenized.input_ids"
STOP_FIELDS: Final = ("min_tokens", "ignore_eos")
SAMPLING_FIELDS: Final = (
    "n",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
)
# SMG's name of a grammar → the contract's.
GUIDES: Final = {
    "json_schema": "json_schema",
    "regex": "regex",
    "grammar": "ebnf_grammar",
    "structural_tag": "structural_tag",
    "json_object": "json_object",
}
# What would change the answer and cannot be done here.
UNSUPPORTED: Final = (
    "kv_transfer_params",
    "kv_transfer_params_json",
    "mm_inputs",
    "extra_mm_inputs",
    "media_refs",
)
UNSUPPORTED_SAMPLING: Final = ("prompt_logprobs", "truncate_prompt_tokens")


def to_backend(asked: vllm.GenerateRequest) -> pb.BackendServiceGenerateRequest:
    """The same request for the backend. Raises InvalidPrompt, its field SMG's own."""
    refuse_unsupported(asked)
    request = pb.PreprocessedRequest(token_ids=token_ids_of(asked.tokenized))
    params = asked.sampling_params
    try:
        fill_stops(request.stop_conditions, params)
        fill_sampling(request.sampling_options, params)
        request.output_options.skip_special_tokens = params.skip_special_tokens
        if params.HasField("logprobs"):
            request.output_options.logprobs = params.logprobs
        if asked.HasField("data_parallel_rank"):
            request.routing.dp_rank = asked.data_parallel_rank
    except ValueError as error:
        raise InvalidPrompt("sampling_params", "a value is out of range") from error
    return pb.BackendServiceGenerateRequest(request_id=asked.request_id, token_ids=True, request=request)


def token_ids_of(tokenized: vllm.TokenizedInput) -> Sequence[int]:
    """The prompt, or what is to be embedded. Raises InvalidPrompt."""
    if not tokenized.input_ids:
        raise InvalidPrompt(INPUT, "must not be empty: the gateway tokenizes")
    return tokenized.input_ids


def refuse_unsupported(asked: vllm.GenerateRequest) -> None:
    """Raise InvalidPrompt for what would be ignored although it changes the answer."""
    given = {field.name for field, _ in asked.ListFields()}
    sampling = {field.name for field, _ in asked.sampling_params.ListFields()}
    for name in UNSUPPORTED:
        if name in given:
            raise InvalidPrompt(name, "not supported")
    for name in UNSUPPORTED_SAMPLING:
        if name in sampling:
            raise InvalidPrompt(f"sampling_params.{name}", "not supported")


def fill_stops(conditions: pb.StopConditions, params: vllm.SamplingParams) -> None:
    """When to stop. Raises ValueError."""
    for name in STOP_FIELDS:
        if value := getattr(params, name):
            setattr(conditions, name, value)
    if params.HasField("max_tokens"):
        conditions.max_tokens = params.max_tokens
    conditions.stop.extend(params.stop)
    conditions.stop_token_ids.extend(params.stop_token_ids)


def fill_sampling(sampling: pb.SamplingOptions, params: vllm.SamplingParams) -> None:
    """How to choose tokens. Raises ValueError."""
    for name in SAMPLING_FIELDS:
        if value := getattr(params, name):
            setattr(sampling, name, value)
    if params.HasField("temperature"):
        sampling.temperature = params.temperature
    if params.HasField("seed"):
        # SMG's seeds have a sign, the contract's have not.
        sampling.seed = params.seed % 2**64
    # A map has no order; sorted, equal requests are equal bytes.
    for token_id, bias in sorted(params.logit_bias.items()):
        sampling.logit_bias.add(token_id=token_id, bias=bias)
    fill_guide(sampling, params)


def fill_guide(sampling: pb.SamplingOptions, params: vllm.SamplingParams) -> None:
    """The grammar to follow, if one is asked for."""
    kind = params.WhichOneof("constraint")
    if kind == "choice":
        sampling.guided_decoding.choice.choices.extend(params.choice.choices)
    elif kind is not None:
        setattr(sampling.guided_decoding, GUIDES[kind], getattr(params, kind))
