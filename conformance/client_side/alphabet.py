"""The tokenizer of the scripted engine: one token per byte, a few words, and two special tokens.

Small enough for every tokenizer library, and it can say any text in pieces of any size. Knows nothing
about requests; backends get it as `tokenizer.json` through GetTokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from enginewire import v1 as pb

NUM_BYTES: Final = 256
WORDS: Final = ("stream", "abcd", " END and", "xyEND", " STOP more", "STOP", "word")
"""Tokens of several characters: where text before and after a stop comes at once."""
EOS_TEXT: Final = "<|end|>"
EOS: Final = NUM_BYTES + len(WORDS)
TURN_TEXT: Final = "<|turn|>"
TURN: Final = EOS + 1
"""A special token that ends nothing by itself."""
NUM_TOKENS: Final = TURN + 1
VOCAB_SIZE: Final = NUM_TOKENS + 8
"""Padded, as in many models: the last ids are below it and mean nothing."""
UNKNOWN: Final = NUM_TOKENS + 3

Piece = str | bytes | int
"""A word of WORDS is one token, other text and bytes are one token per byte, an int is a token id."""


def ids(*pieces: Piece) -> list[int]:
    """The token ids of pieces, one after the other."""
    return [token for piece in pieces for token in _ids(piece)]


def _ids(piece: Piece) -> Iterable[int]:
    if isinstance(piece, int):
        return [piece]
    if piece in WORDS:
        return [NUM_BYTES + WORDS.index(piece)]
    return piece.encode() if isinstance(piece, str) else piece


@cache
def files() -> dict[str, bytes]:
    """The files by name."""
    return {
        "tokenizer.json": json.dumps(_tokenizer()).encode(),
        "tokenizer_config.json": json.dumps({"eos_token": EOS_TEXT}).encode(),
    }


def answers(known_digest: str) -> Iterator[pb.GetTokenizerResponse]:
    """What GetTokenizer sends to one who has a copy of that digest."""
    manifest = _manifest()
    yield pb.GetTokenizerResponse(manifest=manifest)
    for name, content in files().items() if known_digest != manifest.digest else ():
        yield pb.GetTokenizerResponse(chunk=pb.TokenizerChunk(name=name, data=content))


def _manifest() -> pb.TokenizerManifest:
    described = [
        pb.TokenizerFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files().items()
    ]
    lines = [f"{file.name}\0{file.size}\0{file.sha256}\n" for file in sorted(described, key=_by_name)]
    return pb.TokenizerManifest(digest=hashlib.sha256("".join(lines).encode()).hexdigest(), files=described)


def _by_name(file: pb.TokenizerFile) -> bytes:
    return file.name.encode()


def printable(byte: int) -> str:
    """The character that stands for a byte in byte-level vocabularies: GPT-2's table."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in shown:
        return chr(byte)
    return chr(0x100 + [other for other in range(NUM_BYTES) if other not in shown].index(byte))


def _tokenizer() -> dict[str, object]:
    """The format of the `tokenizers` library."""
    tokens = [printable(byte) for byte in range(NUM_BYTES)]
    tokens += ["".join(map(printable, word.encode())) for word in WORDS]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": EOS, "content": EOS_TEXT, **special},
            {"id": TURN, "content": TURN_TEXT, **special},
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: place for place, token in enumerate(tokens)}, "merges": []},
    }
