"""Is this a request to embed that the engine may be given? Every rule of the contract, before acceptance.

Raises an `EngineError` that names the input at fault. Knows nothing about queues, gRPC or a particular
engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.field_rules import rules_of
from enginewire.server.failures import ContextExceeded, InvalidRequest, Unsupported
from enginewire.server.validation.bounds import Bounds
from enginewire.server.validation.fields import invalid
from enginewire.server.validation.generate import (
    check_annotations,
    check_client_revision,
    check_model,
    check_request_id,
    check_routing,
)
from enginewire.server.validation.payloads import check_ids

RULES = rules_of(pb.PreprocessedEmbeddingRequest.DESCRIPTOR)
MAX_INPUTS, MAX_CHECKSUM_BYTES = RULES["token_ids"].bound, RULES["mdc_sum"].bound
MAX_ANSWER_BYTES = 4_000_000
"""An answer is one message: below the 4 MiB that gRPC clients accept unless told otherwise."""
ENCODINGS = ("float", "base64")


def check_embed(
    request: pb.EmbedRequest, routing: pb.RoutingHints, config: pb.EngineConfig, embedding_size: int
) -> None:
    """Return if the engine that advertised `config` may be given `request`, else raise an EngineError.

    `routing` came with it as metadata. `embedding_size` is how many numbers the engine's own vectors have.
    """
    check_request_id(request.request_id)
    check_client_revision(request.client_revision)
    if not config.capabilities.embeddings:
        raise Unsupported("this engine has no embeddings")
    if not request.HasField("request"):
        raise InvalidRequest("request: must be set", field="request")
    asked = request.request
    check_model(asked.model, config)
    _check_routing(routing, config)
    check_annotations(asked.annotations)
    _check_texts(asked)
    size = _check_dimensions(asked, embedding_size)
    _check_inputs(asked.token_ids, config, min(MAX_INPUTS, MAX_ANSWER_BYTES // (4 * size + 16)))


def _check_routing(routing: pb.RoutingHints, config: pb.EngineConfig) -> None:
    if routing.priority and not config.capabilities.priority:
        path = "routing.priority"
        raise Unsupported(f"{path}: needs the capability priority", field=path)
    check_routing(routing, config)


def _check_texts(asked: pb.PreprocessedEmbeddingRequest) -> None:
    if asked.HasField("encoding_format") and asked.encoding_format not in ENCODINGS:
        raise invalid("encoding_format", "unknown", asked.encoding_format, " or ".join(ENCODINGS))
    if len(asked.mdc_sum.encode()) > MAX_CHECKSUM_BYTES:
        raise InvalidRequest(f"mdc_sum: must have at most {MAX_CHECKSUM_BYTES} bytes", field="mdc_sum")


def _check_dimensions(asked: pb.PreprocessedEmbeddingRequest, embedding_size: int) -> int:
    """The numbers that each vector of the answer will have."""
    if not asked.HasField("dimensions"):
        return embedding_size
    if not 1 <= asked.dimensions <= embedding_size:
        raise invalid("dimensions", "out of range", asked.dimensions, f"1..{embedding_size}")
    return asked.dimensions


def _check_inputs(inputs: Sequence[pb.TokenSequence], config: pb.EngineConfig, most_inputs: int) -> None:
    if not 1 <= len(inputs) <= most_inputs:
        raise invalid("token_ids", "no inputs or too many for one answer", len(inputs), f"1..{most_inputs}")
    bounds = Bounds.of(config)
    most = min(bounds.context_length, bounds.max_prompt_tokens)
    for place, each in enumerate(inputs):
        path, count = f"token_ids[{place}]", len(each.token_ids)
        if not count:
            raise InvalidRequest(f"{path}: must not be empty", field=path)
        if count > most:
            message = f"{path}: exceeds the context, got {count} tokens, allowed 1..{most}"
            raise ContextExceeded(message, field=path)
        _check_vocabulary(path, each.token_ids, bounds.vocab_size)


def _check_vocabulary(path: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """EMB-05 names the input, not the place of the id in it."""
    try:
        check_ids(path, token_ids, vocab_size)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), field=path) from None
