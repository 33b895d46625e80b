"""Byte-level BPE, the way of GPT-2, Llama 3, Qwen and many others: each token stands for some bytes.

A token that is whole characters is one look-up. Fragments of characters lead from one state to the next;
the states are worked out as texts need them and shared by all streams of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, cast

from enginewire.backend.decoding import utf8
from enginewire.backend.decoding.detokenizer import Detokenizer
from enginewire.byte_level import BYTE_OF_CHARACTER

# Remembered per vocabulary: enough for the fragments of any text, and a bound on what hostile ids can cost.
MAX_MOVES: Final = 1 << 16
# Bytes of an unfinished character.
MAX_HELD: Final = 3


class Held:
    """The bytes of an unfinished character; by next token, the text that completes and what is held then."""

    __slots__ = ("data", "moves")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.moves: dict[int, tuple[str, Held]] = {}


class ByteLevelTable:
    """The bytes of each id of a byte-level BPE vocabulary.

    `texts[id]` is the text of a token that is whole UTF-8 on its own, "" for one that is not shown,
    None for a fragment; `fragments` has the bytes of those. What fragments become behind each other is worked
    out once and remembered, up to `max_moves` times.
    """

    __slots__ = ("_helds", "_num_moves_left", "fragments", "nothing_held", "texts")

    def __init__(
        self, pieces: Sequence[str | None], hidden: Collection[str], max_moves: int = MAX_MOVES
    ) -> None:
        self.texts: list[str | None] = []
        self.fragments: dict[int, bytes] = {}
        self.nothing_held = Held(b"")
        self._helds = {b"": self.nothing_held}
        self._num_moves_left = max_moves
        for token_id, piece in enumerate(pieces):
            data = b"" if piece is None or piece in hidden else piece_bytes(piece)
            text = decode_whole(data)
            self.texts.append(text)
            if text is None:
                self.fragments[token_id] = data

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """See TokenTable."""
        stream = ByteLevelDetokenizer(self)
        if prompt:
            stream.feed(self._end_of(prompt))
        return stream

    def _end_of(self, prompt: Sequence[int]) -> Sequence[int]:
        """From the last whole characters on, or the last bytes that can still become one."""
        num_bytes = 0
        for place in reversed(range(len(prompt))):
            fragment = self.fragments.get(prompt[place], b"")
            num_bytes += len(fragment)
            if num_bytes >= MAX_HELD or (not fragment and self.token_text(prompt[place])):
                return prompt[place:]
        return prompt

    def token_text(self, token_id: int) -> str:
        """See TokenTable."""
        if (data := self.fragments.get(token_id)) is not None:
            return data.decode(errors="replace")
        return (self.texts[token_id] or "") if token_id < len(self.texts) else ""

    def token_bytes(self, token_id: int) -> bytes:
        """See TokenTable."""
        return self.fragments.get(token_id) or self.token_text(token_id).encode()

    def move(self, held: Held, token_id: int) -> tuple[str, Held]:
        """The text that is complete with a token behind what was held, and what is held then."""
        text, rest = utf8.decoded(held.data + self.token_bytes(token_id))
        after = self._helds.get(rest) or Held(rest)
        if self._num_moves_left > 0:
            self._num_moves_left -= 1
            self._helds[rest] = after
            held.moves[token_id] = text, after
        return text, after


class ByteLevelDetokenizer:
    """Byte-level BPE: a table look-up, and up to three bytes of an unfinished character."""

    __slots__ = ("_held", "_table", "_texts")

    def __init__(self, table: ByteLevelTable) -> None:
        self._table = table
        self._texts = table.texts
        self._held = table.nothing_held

    @property
    def is_at_rest(self) -> bool:
        """See Detokenizer."""
        return not self._held.data

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        held = self._held
        if not held.data:
            try:
                text = self._texts[token_id]
            except IndexError:
                return ""
            if text is not None:
                return text
        move = held.moves.get(token_id) or self._table.move(held, token_id)
        self._held = move[1]
        return move[0]

    def feed(self, token_ids: Sequence[int]) -> list[str]:
        """See Detokenizer."""
        if not self._held.data:
            try:
                pieces = [self._texts[token_id] for token_id in token_ids]
            except IndexError:
                pieces = [None]
            if None not in pieces:
                return cast(list[str], pieces)
        return [self.step(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """See Detokenizer."""
        text = utf8.ended(self._held.data)
        self._held = self._table.nothing_held
        return text


def piece_bytes(piece: str) -> bytes:
    """The bytes a byte-level vocabulary entry stands for; an entry with other characters is itself."""
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in piece)
    except KeyError:
        return piece.encode()


def decode_whole(data: bytes) -> str | None:
    """The text of `data`, or None when it is not whole UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
