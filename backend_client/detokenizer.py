"""Turns token ids into text, piece by piece.

Holds what every detokenizer is, those of byte-fallback tokenizers and those of the rest; `byte_level` has
the largest family, and `vocabulary` picks among them. Knows nothing about stop conditions, requests or the
wire. For every id sequence the pieces together with the flush are what `tokenizer.decode` gives for the
whole sequence; a piece never ends inside a character, and what was returned is never taken back.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecodeError(Exception):
    """The tokenizer could not turn ids into text; the message begins with `decode error:`."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"decode error: {cause}")


class Detokenizer(Protocol):
    """The state of one text stream: at most a few bytes or tokens, whatever the ids."""

    @property
    def is_at_rest(self) -> bool:
        """What a token shows does not depend on what came before it."""
        ...

    def step(self, token_id: int) -> str:
        """The text that became complete with this token, often its own text. Raises DecodeError."""
        ...

    def feed(self, token_ids: Sequence[int]) -> list[str]:
        """`step` for each id, in order."""
        ...

    def flush(self) -> str:
        """The stream ends: U+FFFD for bytes that never became a character."""
        ...


class TokenTable(Protocol):
    """What the ids of one tokenizer mean. Shared by all streams."""

    def detokenizer(self) -> Detokenizer:
        """A fresh text stream."""
        ...

    def token_text(self, token_id: int) -> str:
        """The token's own text in mid-sentence, "" for an unknown id; a part of a character is U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """`token_text` as UTF-8, and the bytes themselves of a part of a character where they are known."""
        ...


class ByteFallbackTable:
    """Text of each ordinary id and value of each byte id of a byte-fallback vocabulary.

    `strip` is how many spaces the decoder takes off the beginning of the whole text.
    """

    __slots__ = ("byte_values", "strip", "texts")

    def __init__(self, pieces: Sequence[str | None], hidden: Collection[str], strip: int) -> None:
        self.strip = strip
        self.byte_values: dict[int, bytes] = {}
        self.texts: list[str | None] = []
        for token_id, piece in enumerate(pieces):
            shown = "" if piece is None or piece in hidden else piece
            byte = BYTE_TOKEN.fullmatch(shown)
            self.texts.append(None if byte else shown.replace("\u2581", " "))
            if byte:
                self.byte_values[token_id] = bytes.fromhex(byte[1])

    def detokenizer(self) -> Detokenizer:
        """See TokenTable."""
        return ByteFallbackDetokenizer(self)

    def token_text(self, token_id: int) -> str:
        """See TokenTable."""
        if (value := self.byte_values.get(token_id)) is not None:
            return value.decode(errors="replace")
        return (self.texts[token_id] or "") if token_id < len(self.texts) else ""

    def token_bytes(self, token_id: int) -> bytes:
        """See TokenTable."""
        return self.byte_values.get(token_id) or self.token_text(token_id).encode()


class ByteFallbackDetokenizer:
    """Byte-fallback BPE: text for ordinary ids, characters out of runs of byte ids.

    `tokenizer.decode` shows a run that is not valid UTF-8 as one U+FFFD per byte. So do we, except
    that a character which was complete before the run went wrong has been shown and stays.
    """

    __slots__ = ("_broken", "_pending", "_strip", "_table", "_texts")

    def __init__(self, table: ByteFallbackTable) -> None:
        self._table = table
        self._texts = table.texts
        self._strip = table.strip
        self._pending = b""
        self._broken = False

    @property
    def is_at_rest(self) -> bool:
        """See Detokenizer."""
        return not (self._pending or self._broken or self._strip)

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        try:
            text = self._texts[token_id]
        except IndexError:
            return ""
        if text is None:
            return self._stripped(self._byte(self._table.byte_values[token_id]))
        if not text:
            return ""
        if self._pending or self._broken:
            text = self.flush() + text
        return self._stripped(text) if self._strip else text

    def feed(self, token_ids: Sequence[int]) -> list[str]:
        """See Detokenizer."""
        return [self.step(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """See Detokenizer."""
        text = REPLACEMENT * len(self._pending)
        self._pending, self._broken = b"", False
        return text

    def _byte(self, value: bytes) -> str:
        if self._broken:
            return REPLACEMENT
        data = self._pending + value
        try:
            text, consumed = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            self._pending, self._broken = b"", True
            return REPLACEMENT * len(data)
        self._pending = data[consumed:]
        return text

    def _stripped(self, text: str) -> str:
        """Take the leading spaces off the beginning of the whole text."""
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            self._strip -= 1
            text = text[1:]
        return text


class WindowTable:
    """Asks the tokenizer itself. `seen`: ids that leave a trace in the text, not skipped special ones."""

    def __init__(self, tokenizer: Tokenizer, seen: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self.seen = seen

    def detokenizer(self) -> Detokenizer:
        """See TokenTable."""
        return WindowDetokenizer(self)

    def token_text(self, token_id: int) -> str:
        """See TokenTable."""
        once, twice = (decode(self.tokenizer, [token_id] * times) for times in (1, 2))
        return twice[len(once) :] if twice.startswith(once) else once

    def token_bytes(self, token_id: int) -> bytes:
        """See TokenTable."""
        return self.token_text(token_id).encode()


class WindowDetokenizer:
    """Any other tokenizer: decode a short window of ids and show what it gained.

    The library's DecodeStream does the same, but raises when a byte run turns invalid, keeps a
    window that grows with invalid bytes, and has no flush.
    """

    CONTEXT = 6  # ids kept in front of new ones, for decoders that look at their neighbours
    WINDOW = 16  # ids decoded at once before old ones are dropped
    PENDING = 8  # ids that may wait for the rest of a character, which has at most four bytes

    __slots__ = ("_ids", "_num_pending", "_seen", "_shown", "_tokenizer")

    def __init__(self, table: WindowTable) -> None:
        self._tokenizer = table.tokenizer
        self._seen = table.seen
        self._ids: list[int] = []
        self._shown = 0
        self._num_pending = 0

    @property
    def is_at_rest(self) -> bool:
        """See Detokenizer. Its tokenizer may look at any neighbour."""
        return False

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        if token_id not in self._seen:
            return ""
        self._ids.append(token_id)
        self._num_pending += 1
        text = decode(self._tokenizer, self._ids)
        if not text.endswith(REPLACEMENT):
            return self._show(text, 0)
        if self._num_pending < self.PENDING:
            return ""
        # Only the last three bytes can still become a character.
        return self._show(text, min(3, len(text) - len(text.rstrip(REPLACEMENT))))

    def feed(self, token_ids: Sequence[int]) -> list[str]:
        """See Detokenizer."""
        return [self.step(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """See Detokenizer."""
        return self._show(decode(self._tokenizer, self._ids), 0) if self._num_pending else ""

    def _show(self, text: str, num_held: int) -> str:
        """What `text`, the decoded window, adds; its last `num_held` characters stay back."""
        until = len(text) - num_held
        gained = text[self._shown : until]
        self._num_pending = num_held
        self._shown = max(self._shown, until)
        if len(self._ids) > self.WINDOW:
            del self._ids[: -self.CONTEXT]
            self._shown = len(decode(self._tokenizer, self._ids)) - num_held
        return gained


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """`tokenizer.decode`, special tokens included. Raises DecodeError."""
    try:
        return tokenizer.decode(token_ids, skip_special_tokens=False)
    except Exception as error:  # the library raises nothing more specific
        raise DecodeError(str(error)) from error
