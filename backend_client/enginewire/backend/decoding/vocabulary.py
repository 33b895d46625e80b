"""The decoding side of a tokenizer: what its ids mean, and which detokenizer is exact for it.

Holds the choice among the token tables, checked against `tokenizer.decode` when it is made. Knows
nothing about encoding, chat templates or requests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Sequence
from enum import Enum
from functools import lru_cache
from typing import cast

from tokenizers import Tokenizer

from enginewire.backend.decoding.byte_level import ByteLevelTable
from enginewire.backend.decoding.detokenizer import BYTE_TOKEN, ByteFallbackTable, Detokenizer, TokenTable
from enginewire.backend.decoding.window import BYTE_FALLBACK, BYTE_LEVEL, NO_BYTES, ByteRule, WindowTable

# Room for holes between ids; a tokenizer file with wilder ids gets no table.
MAX_ID_HOLES = 65_536
# Frequent texts are asked for again and again; bounds what one process keeps of them.
MAX_TOKEN_TEXTS = 65_536
# Sets of stop conditions that are in use at a time; of others what was learned is forgotten.
MAX_KNOWN_TEXTS = 16
SELF_TEST_SEQUENCES = 96
SELF_TEST_LENGTH = 24


class TableKind(Enum):
    """The families of token tables."""

    BYTE_LEVEL = "byte-level"
    BYTE_FALLBACK = "byte-fallback"
    WINDOW = "window"


class Vocabulary:
    """What ids mean. One per tokenizer, shared by all requests.

    `special_ids` maps the text of each special token to its id; `size` is the largest id plus one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = {token.content: token_id for token_id, token in added.items() if token.special}
        self._pieces = {token_id: piece for piece, token_id in tokenizer.get_vocab().items()}
        # An added token may be decoded as its normalized text, which only this tells.
        self._added = {token_id: tokenizer.id_to_token(token_id) or "" for token_id in added}
        self._pieces.update(self._added)
        self.size = max(self._pieces, default=-1) + 1
        self.kind = self._exact_kind()
        self._tables = {skip: self._table(self.kind, skip) for skip in (False, True)}
        self.token_text = lru_cache(maxsize=MAX_TOKEN_TEXTS)(self._tables[False].token_text)
        self.token_bytes = self._tables[False].token_bytes
        self._known_texts = lru_cache(maxsize=MAX_KNOWN_TEXTS)(_nothing_known)

    def detokenizer(self, *, skip_special_tokens: bool = True, prompt: Sequence[int] = ()) -> Detokenizer:
        """A fresh text stream behind the ids of a prompt. Raises DecodeError for a prompt without a text."""
        return self._tables[skip_special_tokens].detokenizer(prompt)

    def known_texts(self, *conditions: Hashable) -> dict[int, str]:
        """Shared by all who name the same conditions: what they have learned about ids."""
        return self._known_texts(conditions)

    def _exact_kind(self) -> TableKind:
        """What the decoder's description suggests, if it stands the test."""
        kind = self._suggested_kind()
        if kind is not TableKind.WINDOW and not self._agrees(kind):
            return TableKind.WINDOW
        return kind

    def _suggested_kind(self) -> TableKind:
        if self.size > len(self._pieces) + MAX_ID_HOLES:
            return TableKind.WINDOW
        steps = decoder_steps(self._tokenizer)
        if [step["type"] for step in steps] == ["ByteLevel"]:
            return TableKind.BYTE_LEVEL
        if leading_spaces(steps) is not None:
            return TableKind.BYTE_FALLBACK
        return TableKind.WINDOW

    def _table(self, kind: TableKind, skip_special_tokens: bool) -> TokenTable:
        hidden = self.special_ids.keys() if skip_special_tokens else frozenset()
        if kind is TableKind.WINDOW:
            seen = {token_id: piece for token_id, piece in self._pieces.items() if piece not in hidden}
            steps = decoder_steps(self._tokenizer)
            return WindowTable(self._tokenizer.decoder, seen, byte_rule(steps), num_stripped(steps))
        pieces = [self._pieces.get(token_id) for token_id in range(self.size)]
        if kind is TableKind.BYTE_LEVEL:
            return ByteLevelTable(pieces, hidden)
        return ByteFallbackTable(pieces, hidden, leading_spaces(decoder_steps(self._tokenizer)) or 0)

    def _agrees(self, kind: TableKind) -> bool:
        """Decode random ids and every added one through the table and through the tokenizer.

        Byte tokens of a byte-fallback vocabulary are left to the tests: see ByteFallbackDetokenizer.
        """
        draw = random.Random(self.size)
        ids = [i for i, piece in self._pieces.items() if not BYTE_TOKEN.fullmatch(piece)]
        added = [i for i in self._added if not BYTE_TOKEN.fullmatch(self._pieces[i])]
        sequences = [draw.choices(ids, k=SELF_TEST_LENGTH) for _ in range(SELF_TEST_SEQUENCES)]
        for begin in range(0, len(added), SELF_TEST_LENGTH):
            some = added[begin : begin + SELF_TEST_LENGTH]
            sequences.append(
                [i for pair in zip(some, draw.choices(ids, k=len(some)), strict=True) for i in pair]
            )
        for skip in (False, True):
            table = self._table(kind, skip)
            for sequence in sequences:
                stream = table.detokenizer()
                text = "".join(stream.feed(sequence)) + stream.flush()
                if text != self._tokenizer.decode(sequence, skip_special_tokens=skip):
                    return False
        return True


def _nothing_known(conditions: tuple[Hashable, ...]) -> dict[int, str]:
    return {}


def decoder_steps(tokenizer: Tokenizer) -> list[dict[str, object]]:
    """The decoder's description in tokenizer.json, a sequence flattened."""
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def byte_rule(steps: list[dict[str, object]]) -> ByteRule:
    """How a decoder of these steps makes characters of bytes, if it does."""
    types = [step["type"] for step in steps]
    if "ByteLevel" in types:
        return BYTE_LEVEL
    return BYTE_FALLBACK if "ByteFallback" in types else NO_BYTES


def num_stripped(steps: list[dict[str, object]]) -> int:
    """How many characters the steps take off the ends of a text, at most."""
    strips = [step for step in steps if step["type"] == "Strip"]
    return sum(cast(int, step["start"]) + cast(int, step["stop"]) for step in strips)


def leading_spaces(steps: list[dict[str, object]]) -> int | None:
    """How many leading spaces a byte-fallback decoder strips; None when it is not of that family."""
    family: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if steps[:3] != family:
        return None
    match steps[3:]:
        case []:
            return 0
        case [{"type": "Strip", "content": " ", "start": int(start), "stop": 0}]:
            return start
    return None
