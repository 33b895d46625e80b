"""Any tokenizer that no table knows: its own decoder is asked for a short window of tokens.

Holds the window, and how decoders that join bytes to characters spell them. The decoder only ever gets whole
characters: which bytes still wait for others is known here, as in the tables, and not guessed from its text.
Knows nothing about how a tokenizer's description is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers.decoders import Decoder

from enginewire.backend.decoding import utf8
from enginewire.backend.decoding.byte_level import decode_whole, piece_bytes
from enginewire.backend.decoding.detokenizer import (
    BYTE_TOKEN,
    DecodeError,
    Detokenizer,
    is_of_library,
    rest_of_run,
    take_byte,
)
from enginewire.byte_level import CHARACTER_OF_BYTE

# Tokens kept in front of new ones, for decoders that look at their neighbours.
CONTEXT: Final = 6
# Tokens beyond those that are decoded at once before old ones are dropped.
ROOM: Final = 10


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How a decoder writes bytes, and what becomes of those that follow each other.

    `part`: the bytes of a token that is a part of a character, None for any other one. `take` and `rest` are
    as `take_byte` and `rest_of_run`. `spell` writes a whole character as a token.
    """

    part: Callable[[str], bytes | None]
    take: Callable[[bytes | None, bytes], tuple[str, bytes | None]]
    rest: Callable[[bytes | None], str]
    spell: Callable[[str], str]


def fragment(piece: str) -> bytes | None:
    """The bytes of a byte-level token that is not whole characters."""
    data = piece_bytes(piece)
    return data if decode_whole(data) is None else None


def byte_value(piece: str) -> bytes | None:
    """The byte of a byte token."""
    found = BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(found[1]) if found else None


def take_fragment(held: bytes | None, data: bytes) -> tuple[str, bytes | None]:
    """Bytes behind those that were held: U+FFFD for what is no character, and what is held then."""
    return utf8.decoded((held or b"") + data)


def rest_of_fragment(held: bytes | None) -> str:
    """What is left of a character that was not finished."""
    return utf8.ended(held or b"")


def spelled(character: str) -> str:
    """A character as a byte-level token."""
    return "".join(CHARACTER_OF_BYTE[byte] for byte in character.encode())


NO_BYTES: Final = ByteRule(lambda piece: None, take_byte, rest_of_run, str)
BYTE_FALLBACK: Final = ByteRule(byte_value, take_byte, rest_of_run, str)
BYTE_LEVEL: Final = ByteRule(fragment, take_fragment, rest_of_fragment, spelled)


class WindowTable:
    """The tokens of each id, and the decoder that turns tokens into text; without one, spaces join them.

    `pieces` lacks ids that leave no trace, `parts` has the bytes of parts of characters. `context` tokens are
    enough to decode the next one behind them.
    """

    def __init__(
        self,
        decoder: Decoder | None,
        pieces: Mapping[int, str],
        rule: ByteRule = NO_BYTES,
        num_stripped: int = 0,
    ) -> None:
        """`num_stripped` characters at most are taken off both ends of a text."""
        self._decoder = decoder
        self.pieces = pieces
        self.rule = rule
        self.context = CONTEXT + num_stripped
        parts = {token_id: rule.part(piece) for token_id, piece in pieces.items()}
        self.parts = {token_id: part for token_id, part in parts.items() if part is not None}

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """See TokenTable."""
        return WindowDetokenizer(self, self._end_of(prompt))

    def token_text(self, token_id: int) -> str:
        """See TokenTable. As its vocabulary spells it when it cannot be decoded alone."""
        if (part := self.parts.get(token_id)) is not None:
            return part.decode(errors="replace")
        if (piece := self.pieces.get(token_id)) is None:
            return ""
        try:
            once, twice = self.decode([piece]), self.decode([piece, piece])
        except DecodeError:
            return piece
        return twice[len(once) :] if twice.startswith(once) else once

    def token_bytes(self, token_id: int) -> bytes:
        """See TokenTable."""
        return self.parts.get(token_id) or self.token_text(token_id).encode()

    def decode(self, pieces: Sequence[str]) -> str:
        """Their text. Raises DecodeError."""
        if self._decoder is None:
            return " ".join(pieces)
        try:
            return self._decoder.decode(pieces)
        except BaseException as error:
            if not is_of_library(error):
                raise
            raise DecodeError(str(error)) from error

    def _end_of(self, prompt: Sequence[int]) -> Sequence[int]:
        """From the last whole tokens on, as many as make a context."""
        num_whole = 0
        for place in reversed(range(len(prompt))):
            num_whole += prompt[place] in self.pieces and prompt[place] not in self.parts
            if num_whole == self.context:
                return prompt[place:]
        return prompt


class WindowDetokenizer:
    """Decodes the last tokens, and shows what they gained.

    The library's DecodeStream does the same, but raises when a byte run turns invalid, keeps a
    window that grows with invalid bytes, and has no flush.
    """

    __slots__ = ("_held", "_pieces", "_shown", "_table")

    def __init__(self, table: WindowTable, prompt: Sequence[int] = ()) -> None:
        self._table = table
        self._held: bytes | None = b""
        self._pieces: list[str] = []
        self._shown = 0
        pieces = [piece for token_id in prompt for piece in self._complete(token_id)]
        self._keep(pieces[-table.context :])

    @property
    def is_at_rest(self) -> bool:
        """See Detokenizer. Its decoder may look at any neighbour."""
        return False

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        return self._show(self._complete(token_id))

    def feed(self, token_ids: Sequence[int]) -> list[str]:
        """See Detokenizer."""
        return [self.step(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """See Detokenizer."""
        return self._show(self._end_run())

    def _complete(self, token_id: int) -> list[str]:
        """The tokens of whole characters that this one completes."""
        part = self._table.parts.get(token_id)
        if part is not None:
            text, self._held = self._table.rule.take(self._held, part)
            return [self._table.rule.spell(character) for character in text]
        piece = self._table.pieces.get(token_id)
        return [] if piece is None else [*self._end_run(), piece]

    def _end_run(self) -> list[str]:
        """No further byte comes: tokens of U+FFFD for what is left."""
        rest, self._held = self._table.rule.rest(self._held), b""
        return [self._table.rule.spell(character) for character in rest]

    def _show(self, new: Sequence[str]) -> str:
        """The text that these tokens add."""
        if not new:
            return ""
        pieces = [*self._pieces, *new]
        text = self._table.decode(pieces)
        gained = text[self._shown :]
        if len(pieces) > self._table.context + ROOM:
            self._keep(pieces[-self._table.context :])
        else:
            self._pieces, self._shown = pieces, max(self._shown, len(text))
        return gained

    def _keep(self, pieces: list[str]) -> None:
        """Go on behind these tokens, whose text is known. A copy of the stream keeps its own list."""
        self._pieces = pieces
        self._shown = len(self._table.decode(pieces)) if pieces else 0
