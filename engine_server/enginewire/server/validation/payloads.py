"""Checks of the structured parts of a request: resume, grammars, embeddings, multi-modal data.

Each function raises an `EngineError` that names the field. Knows nothing about engines beyond what they
advertise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES
from enginewire.server.failures import Unsupported
from enginewire.server.validation.bounds import Bounds
from enginewire.server.validation.fields import invalid
from enginewire.v1.json_text import MAX_BYTES, json_fault

MAX_GUIDED_CHOICES = FIELD_RULES["sampling_options.guided_decoding.choice.choices"].bound

ITEM_SIZES = {
    pb.DATA_TYPE_FLOAT32: 4,
    pb.DATA_TYPE_FLOAT16: 2,
    pb.DATA_TYPE_BFLOAT16: 2,
}
"""Bytes per element of the types that embeddings may have."""

GUIDED_MODES = {
    "json_schema": pb.GUIDED_MODE_JSON_SCHEMA,
    "regex": pb.GUIDED_MODE_REGEX,
    "choice": pb.GUIDED_MODE_CHOICE,
    "ebnf_grammar": pb.GUIDED_MODE_EBNF_GRAMMAR,
    "structural_tag": pb.GUIDED_MODE_STRUCTURAL_TAG,
    "json_object": pb.GUIDED_MODE_JSON_OBJECT,
}


def prompt_length(request: pb.PreprocessedRequest) -> int:
    """Tokens of the prompt, as ids or as embeddings."""
    return len(request.token_ids) or next(iter(request.prompt_embeds.shape), 0)


def check_ids(path: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise for a token id outside of the vocabulary, naming the first one."""
    if max(ids, default=0) < vocab_size:
        return
    index, token_id = next((i, token_id) for i, token_id in enumerate(ids) if token_id >= vocab_size)
    raise invalid(f"{path}[{index}]", "not in the vocabulary", token_id, f"0..{vocab_size - 1}")


def check_resume(request: pb.PreprocessedRequest, bounds: Bounds) -> None:
    """Choices exist, are named once, fit the output, and one of them is left to generate."""
    if not request.HasField("resume"):
        return
    n = request.sampling_options.n if request.sampling_options.HasField("n") else 1
    most = _most_output_tokens(request, bounds)
    seen: set[int] = set()
    for i, choice in enumerate(request.resume.choices):
        path = f"resume.choices[{i}]"
        if choice.index >= n or choice.index in seen:
            raise invalid(f"{path}.index", "no such choice, or named twice", choice.index, f"0..{n - 1}")
        seen.add(choice.index)
        count = len(choice.generated_token_ids)
        if count > most:
            raise invalid(f"{path}.generated_token_ids", "too many", f"{count} ids", f"0..{most}")
        check_ids(f"{path}.generated_token_ids", choice.generated_token_ids, bounds.vocab_size)
    if sum(choice.finished for choice in request.resume.choices) == n:
        raise invalid("resume.choices", "must leave a choice to generate", f"{n} finished", f"0..{n - 1}")


def _most_output_tokens(request: pb.PreprocessedRequest, bounds: Bounds) -> int:
    window = bounds.context_length - prompt_length(request)
    stop = request.stop_conditions
    return min(stop.max_tokens, window) if stop.HasField("max_tokens") else window


def check_guided(guided: pb.GuidedDecoding, modes: Iterable[int]) -> None:
    """There is one guide, its kind is advertised, and it is small and well-formed enough to compile."""
    path = "sampling_options.guided_decoding"
    guide = guided.WhichOneof("guide")
    if guide is None:
        raise invalid(path, "must have a guide", "none", ", ".join(GUIDED_MODES))
    path = f"{path}.{guide}"
    if GUIDED_MODES[guide] not in modes:
        raise Unsupported(f"{path}: this engine has no such guided decoding", field=path)
    if guide == "json_object" and not guided.json_object:
        raise invalid(path, "must be true", False, "true")
    if guide == "choice":
        _check_texts(f"{path}.choices", guided.choice.choices)
    elif guide != "json_object":
        _check_guide_text(path, getattr(guided, guide), is_json=guide in ("json_schema", "structural_tag"))


def _check_texts(path: str, texts: Iterable[str]) -> None:
    texts = list(texts)
    size = sum(len(text.encode()) for text in texts)
    if not 1 <= len(texts) <= MAX_GUIDED_CHOICES or not all(texts) or size > MAX_BYTES:
        got = f"{len(texts)} texts of {size} bytes"
        allowed = f"1..{MAX_GUIDED_CHOICES} of {MAX_BYTES} together"
        raise invalid(path, "too many, too long or empty", got, allowed)


def _check_guide_text(path: str, text: str, *, is_json: bool) -> None:
    size = len(text.encode())
    if not 0 < size <= MAX_BYTES:
        raise invalid(path, "empty or too long", f"{size} bytes", f"1..{MAX_BYTES}")
    fault = json_fault(text, must_be_object=False) if is_json else None
    if fault:
        raise invalid(path, fault, f"{size} bytes", "JSON text")


def check_prompt_embeds(tensor: pb.Tensor, bounds: Bounds) -> None:
    """The bytes are exactly what type and shape say, and the tokens fit."""
    if tensor.data_type not in ITEM_SIZES:
        allowed = ", ".join(pb.DataType.Name(data_type) for data_type in ITEM_SIZES)
        raise invalid("prompt_embeds.data_type", "not a float type", tensor.data_type, allowed)
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise invalid("prompt_embeds.shape", "not two sizes", list(tensor.shape[:8]), "[tokens, hidden size]")
    size = math.prod(tensor.shape) * ITEM_SIZES[tensor.data_type]
    if len(tensor.data) != size:
        raise invalid("prompt_embeds.data", "does not fit the shape", f"{len(tensor.data)} bytes", str(size))
    if tensor.shape[0] >= bounds.context_length:
        most = bounds.context_length - 1
        raise invalid("prompt_embeds.shape", "exceeds the context", tensor.shape[0], f"1..{most} tokens")


def check_multi_modal(parts: Iterable[pb.MultiModalPart], types: Iterable[str]) -> None:
    """Part types are advertised and named once; every item has a source."""
    seen: set[str] = set()
    for i, part in enumerate(parts):
        path = f"multi_modal_data[{i}]"
        if part.part_type not in types:
            raise Unsupported(f"{path}.part_type: this engine has no such input", field=f"{path}.part_type")
        if part.part_type in seen:
            raise invalid(f"{path}.part_type", "named twice", part.part_type, "each type once")
        seen.add(part.part_type)
        for j, item in enumerate(part.items):
            _check_item(f"{path}.items[{j}]", item)


def _check_item(path: str, item: pb.MultiModalItem) -> None:
    source = item.WhichOneof("source")
    if source is None or (source != "decoded" and not getattr(item, source)):
        raise invalid(path, "must have a source", "none", "url, raw_url, decoded, data")
    if source != "decoded":
        return
    if item.decoded.data_type == pb.DATA_TYPE_UNSPECIFIED:
        raise invalid(f"{path}.decoded.data_type", "must be set", 0, "a data type")
    metadata = item.decoded.metadata
    fault = json_fault(metadata, must_be_object=True) if metadata else None
    if fault:
        raise invalid(f"{path}.decoded.metadata", fault, f"{len(metadata)} bytes", "a JSON object")
