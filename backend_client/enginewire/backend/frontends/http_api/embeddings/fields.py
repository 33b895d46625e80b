"""POST /v1/embeddings: texts or token ids in, vectors as JSON out.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from enginewire.backend.embedding import Embeddings
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.fields.generation import Neutral, refuse_unsupported

MAX_TOKEN_ID: Final = 2**32 - 1
AN_INPUT: Final = "a string or a list of token ids"
INPUTS: Final = f"{AN_INPUT}, or a list of either"
ENCODINGS: Final = ("float", "base64")
# What would change the vectors and cannot be done here: refused, unless the value changes nothing.
UNSUPPORTED: Final[Neutral] = {
    "add_special_tokens": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "mm_processor_kwargs": ({},),
    "normalize": (True,),
    "padding": ("do_not_pad",),
    "truncate_prompt_tokens": (),
    "use_activation": (True,),
}


@dataclass(frozen=True, slots=True)
class AskedVectors:
    """One HTTP request."""

    inputs: Sequence[str | Sequence[int]]
    model: str
    dimensions: int | None
    is_base64: bool


def read_asked(body: Body) -> AskedVectors:
    """Raises InvalidBody."""
    refuse_unsupported(body, UNSUPPORTED)
    encoding = body.text("encoding_format") or "float"
    if encoding not in ENCODINGS:
        raise InvalidBody("encoding_format", f"must be {' or '.join(ENCODINGS)}")
    dimensions = body.integer("dimensions")
    if dimensions is not None and not 1 <= dimensions <= MAX_TOKEN_ID:
        raise InvalidBody("dimensions", "must be at least 1")
    return AskedVectors(read_inputs(body), body.text("model") or "", dimensions, encoding == "base64")


def read_inputs(body: Body) -> Sequence[str | Sequence[int]]:
    """A text, texts, token ids, or lists of token ids. Raises InvalidBody."""
    value = body.get("input")
    if isinstance(value, str):
        if not value:
            raise InvalidBody("input", "must not be empty")
        return [value]
    items = checked("input", value, list, INPUTS)
    if items and isinstance(items[0], int):
        return [_token_ids("input", items)]
    return [
        item
        if isinstance(item, str)
        else _token_ids(f"input[{place}]", checked(f"input[{place}]", item, list, AN_INPUT))
        for place, item in enumerate(items)
    ]


def answer_of(embeddings: Embeddings, model: str, *, is_base64: bool) -> bytes:
    """The JSON that the OpenAI SDK takes apart."""
    data = [
        {"object": "embedding", "index": index, "embedding": in_base64(each) if is_base64 else each.tolist()}
        for index, each in enumerate(embeddings.vectors)
    ]
    tokens = embeddings.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def in_base64(vector: array[float]) -> str:
    """Little-endian float32, whatever this machine has."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _token_ids(field: str, items: Sequence[object]) -> Sequence[int]:
    token_ids = [checked(f"{field}[{place}]", item, int) for place, item in enumerate(items)]
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= MAX_TOKEN_ID:
        raise InvalidBody(field, f"must hold token ids, 0 to {MAX_TOKEN_ID}")
    return token_ids
