"""What xgrammar has to know of a model's tokenizer, read from its tokenizer.json.

Knows nothing about grammars or requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import tokenizers
import xgrammar

from engine_server.interface import Tokenizer

ENCODINGS = {
    "ByteLevel": xgrammar.VocabType.BYTE_LEVEL,
    "ByteFallback": xgrammar.VocabType.BYTE_FALLBACK,
}
"""Decoders whose tokens can be turned into bytes one by one."""


def read_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]
) -> xgrammar.TokenizerInfo | None:
    """The bytes of every token below `vocab_size`; None for a tokenizer of another kind, or a broken one."""
    content = tokenizer.files.get("tokenizer.json", b"")
    try:
        library = tokenizers.Tokenizer.from_buffer(content)
    except Exception:  # noqa: BLE001  # the library has no exception of its own
        return None
    encoding = _encoding(json.loads(content))
    if encoding is None:
        return None
    # An empty text marks a token that no grammar may produce: special ones, and ids without a token.
    texts = [""] * vocab_size
    special = {i for i, token in library.get_added_tokens_decoder().items() if token.special}
    for text, token_id in library.get_vocab(with_added_tokens=True).items():
        if token_id < vocab_size and token_id not in special:
            texts[token_id] = text
    stops = list(eos_token_ids) or None
    return xgrammar.TokenizerInfo(texts, vocab_type=encoding, vocab_size=vocab_size, stop_token_ids=stops)


def _encoding(tokenizer: dict[str, object]) -> xgrammar.VocabType | None:
    decoder = tokenizer.get("decoder")
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    found = (ENCODINGS.get(step["type"]) for step in steps)
    return next((encoding for encoding in found if encoding is not None), None)
