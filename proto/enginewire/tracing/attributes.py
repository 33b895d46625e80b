"""What our spans say of a request: the attributes of OpenTelemetry's conventions for generative AI.

Numbers, names and reasons only: never a prompt, an answer, a token, a stop string or a key.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.util.types import AttributeValue

from enginewire import v1 as pb

Attributes = dict[str, AttributeValue]

PROVIDER: Final = "enginewire"
GENERATE: Final = "text_completion"
EMBED: Final = "embeddings"

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
CHOICE_COUNT: Final = "gen_ai.request.choice.count"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

SAMPLING: Final = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def attributes_of(request: pb.PreprocessedRequest | pb.PreprocessedEmbeddingRequest) -> Attributes:
    """What a caller asks for."""
    is_embedding = isinstance(request, pb.PreprocessedEmbeddingRequest)
    found: Attributes = {OPERATION_NAME: EMBED if is_embedding else GENERATE, PROVIDER_NAME: PROVIDER}
    if request.model:
        found[REQUEST_MODEL] = request.model
    if isinstance(request, pb.PreprocessedRequest):
        found.update(_of_generation(request))
    return found


def _of_generation(request: pb.PreprocessedRequest) -> Attributes:
    sampling, found = request.sampling_options, Attributes()
    if request.stop_conditions.HasField("max_tokens"):
        found[MAX_TOKENS] = request.stop_conditions.max_tokens
    if sampling.n > 1:
        found[CHOICE_COUNT] = sampling.n
    for field, value in sampling.ListFields():
        if field.name in SAMPLING:
            found[f"gen_ai.request.{field.name}"] = _shortest(value)
    return found


def _shortest(value: float | int) -> float | int:
    """0.7 for what single precision makes of it."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def address_of(target: str) -> Attributes:
    """Where an engine is: host and port, or the path of a Unix socket."""
    host, _, port = target.rpartition(":")
    if target.startswith("unix:") or not port.isdecimal():
        return {SERVER_ADDRESS: target.removeprefix("unix:")}
    return {SERVER_ADDRESS: host.rpartition("/")[2].strip("[]"), SERVER_PORT: int(port)}
