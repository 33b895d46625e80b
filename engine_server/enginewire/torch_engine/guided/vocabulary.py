"""The bytes of a model's tokens, read from its tokenizer.json: what a grammar is matched against.

Knows nothing about grammars or requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

import tokenizers

from enginewire.byte_level import BYTE_OF_CHARACTER
from enginewire.server.engines.interface import Tokenizer
from enginewire.torch_engine.guided.library import Vocabulary

Decode = Callable[[str], bytes]


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> Vocabulary | None:
    """The bytes of every token below `vocab_size`; None for a tokenizer of another kind, or a broken one."""
    content = tokenizer.files.get("tokenizer.json", b"")
    try:
        library = tokenizers.Tokenizer.from_buffer(content)
    except Exception:  # noqa: BLE001  # the library has no exception of its own
        return None
    decode = _decoding(json.loads(content))
    if decode is None:
        return None
    tokens = [b""] * vocab_size
    special = {i for i, token in library.get_added_tokens_decoder().items() if token.special}
    for text, token_id in library.get_vocab(with_added_tokens=True).items():
        if token_id < vocab_size and token_id not in special:
            tokens[token_id] = decode(text)
    return Vocabulary(tuple(tokens), tuple(eos_token_ids))


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _from_byte_level(text: str) -> bytes:
    # An added token may hold other characters, and is then its text.
    known = all(character in BYTE_OF_CHARACTER for character in text)
    return bytes(BYTE_OF_CHARACTER[character] for character in text) if known else text.encode()


def _from_byte_fallback(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()


DECODERS: dict[str, Decode] = {"ByteLevel": _from_byte_level, "ByteFallback": _from_byte_fallback}
"""Decoders whose tokens can be turned into bytes one by one."""


def _decoding(tokenizer: dict[str, object]) -> Decode | None:
    decoder = tokenizer.get("decoder")
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    return next((DECODERS[step["type"]] for step in steps if step["type"] in DECODERS), None)
