"""The tokenizer of the scripted engine: one token per byte, a few words, and two special tokens.

Small enough for every tokenizer library, and it can say any text in pieces of any size. Knows nothing
about requests; backends get it as `tokenizer.json` through GetTokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from enginewire import v1 as pb
from enginewire.byte_level import CHARACTER_OF_BYTE

NUM_BYTES: Final = 256
WORDS: Final = (
    *("stream", "abcd", " END and", "xyEND", " STOP more", "STOP", "word"),
    *("aab", "  ", " \u00e9", "e\u0301", "\u65e5\u672c", "\U0001f642!"),
)
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
SPECIAL: Final = {EOS: EOS_TEXT, TURN: TURN_TEXT}
SPACE: Final = "\u2581"
"""How vocabularies of SentencePiece spell a space."""

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


def bytes_of(token: int) -> bytes:
    """The text of a token on its own, special ones included; nothing for an id without a meaning."""
    if token < NUM_BYTES:
        return bytes([token])
    word = SPECIAL.get(token, "") if token >= EOS else WORDS[token - NUM_BYTES]
    return word.encode()


@cache
def files(strips_first_space: bool = False) -> dict[str, bytes]:
    """The files by name. `strips_first_space`: decoding leaves out the space that a text begins with."""
    spelling = _spaced() if strips_first_space else _byte_level()
    return {
        "tokenizer.json": json.dumps(_tokenizer(spelling)).encode(),
        "tokenizer_config.json": json.dumps({"eos_token": EOS_TEXT}).encode(),
    }


def answers(known_digest: str, strips_first_space: bool = False) -> Iterator[pb.GetTokenizerResponse]:
    """What GetTokenizer sends to one who has a copy of that digest."""
    contents = files(strips_first_space)
    manifest = _manifest(contents)
    yield pb.GetTokenizerResponse(manifest=manifest)
    for name, content in contents.items() if known_digest != manifest.digest else ():
        yield pb.GetTokenizerResponse(chunk=pb.TokenizerChunk(name=name, data=content))


def _manifest(contents: Mapping[str, bytes]) -> pb.TokenizerManifest:
    described = [
        pb.TokenizerFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    ]
    lines = [f"{file.name}\0{file.size}\0{file.sha256}\n" for file in sorted(described, key=_by_name)]
    return pb.TokenizerManifest(digest=hashlib.sha256("".join(lines).encode()).hexdigest(), files=described)


def _by_name(file: pb.TokenizerFile) -> bytes:
    return file.name.encode()


def _byte_level() -> dict[str, object]:
    tokens = list(map(CHARACTER_OF_BYTE.__getitem__, range(NUM_BYTES)))
    tokens += ["".join(CHARACTER_OF_BYTE[byte] for byte in word.encode()) for word in WORDS]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"normalizer": None, "pre_tokenizer": byte_level, "decoder": byte_level, "model": _model(tokens)}


def _spaced() -> dict[str, object]:
    """The same ids: bytes by their number, spaces as a character of their own."""
    tokens = [f"<0x{byte:02X}>" for byte in range(NUM_BYTES)]
    tokens += [word.replace(" ", SPACE) for word in WORDS]
    steps = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {**_model(tokens), "byte_fallback": True},
    }


def _model(tokens: Iterable[str]) -> dict[str, object]:
    return {"type": "BPE", "vocab": {token: place for place, token in enumerate(tokens)}, "merges": []}


def _tokenizer(spelling: Mapping[str, object]) -> dict[str, object]:
    """The format of the `tokenizers` library."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": EOS, "content": EOS_TEXT, **special},
            {"id": TURN, "content": TURN_TEXT, **special},
        ],
        "post_processor": None,
        **spelling,
    }
