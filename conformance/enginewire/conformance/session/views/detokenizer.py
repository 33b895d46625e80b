"""Token ids to text with the tokenizer that the target offers. Reads two kinds of tokenizer.json.

Byte-level vocabularies, and those of SentencePiece with its bytes and its mark for a space. Enough to
judge text, not to serve it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from enginewire import v1 as pb
from enginewire.byte_level import BYTE_OF_CHARACTER
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.violation import NotApplicable, Violation

FILE: Final = "tokenizer.json"
SPACE: Final = "\u2581"
BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Detokenizer:
    """The bytes of every token; tokens without a text have none."""

    table: Mapping[int, bytes]

    def text(self, token_ids: Iterable[int]) -> str:
        """Their text, U+FFFD for bytes that are none."""
        return b"".join(self.table.get(token, b"") for token in token_ids).decode(errors="replace")


async def fetch(client: Client) -> Detokenizer:
    """The target's own. NotApplicable for kinds that are not known here."""
    exchange = await client.ask("DiscoveryService.GetTokenizer", pb.GetTokenizerRequest())
    if not exchange.is_ok:
        raise Violation("GetTokenizer failed", expected="OK", seen=exchange.status)
    pieces = cast(list[pb.GetTokenizerResponse], exchange.messages)
    content = b"".join(piece.chunk.data for piece in pieces if piece.chunk.name == FILE)
    try:
        return parse(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotApplicable(f"the kit cannot read this tokenizer ({type(error).__name__})") from None


def parse(tokenizer: Mapping[str, object]) -> Detokenizer:
    """From the content of a tokenizer.json. Raises ValueError for kinds that are not known here."""
    model = cast(Mapping[str, object], tokenizer["model"])
    vocabulary = cast(Mapping[str, int], model["vocab"])
    kinds = json.dumps([tokenizer.get("decoder"), tokenizer.get("pre_tokenizer")], ensure_ascii=False)
    if '"ByteLevel"' in kinds:
        table = {token: bytes(map(BYTE_OF_CHARACTER.__getitem__, name)) for name, token in vocabulary.items()}
    elif SPACE in kinds or '"Metaspace"' in kinds:
        table = {token: _piece(name) for name, token in vocabulary.items()}
    else:
        raise ValueError("neither byte-level nor SentencePiece")
    for added in cast(list[Mapping[str, object]], tokenizer.get("added_tokens") or []):
        content = "" if added.get("special") else str(added["content"])
        table[cast(int, added["id"])] = content.encode()
    return Detokenizer(table)


def _piece(name: str) -> bytes:
    byte = BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()
