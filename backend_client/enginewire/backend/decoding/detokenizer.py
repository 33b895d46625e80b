"""Turns token ids into text, piece by piece.

Holds what every detokenizer is, and those of byte-fallback tokenizers; `byte_level` has the largest family,
`window` the rest, and `vocabulary` picks among them. Knows nothing about stop conditions, requests or the
wire. For every id sequence the pieces together with the flush are what `tokenizer.decode` gives for the
whole sequence; a piece never ends inside a character, and what was returned is never taken back.

A stream may begin behind a prompt. Its text is then what its ids add to the complete characters of the
prompt: a space that only the first word of a text loses is there, and a character that the prompt begins
appears when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

from enginewire.backend.decoding import utf8

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecodeError(Exception):
    """The tokenizer could not turn ids into text; the message begins with `decode error:`."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"decode error: {cause}")


def is_of_library(error: BaseException) -> bool:
    """The tokenizers library failed. It raises nothing more specific, and its panics are no Exceptions."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


class Detokenizer(Protocol):
    """The state of one text stream: at most a few bytes or tokens, whatever the ids.

    A shallow copy is a stream of its own that goes on from here.
    """

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

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """A fresh text stream behind these ids, of which no more are read than it takes.

        Raises DecodeError.
        """
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

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """See TokenTable."""
        stream = ByteFallbackDetokenizer(self)
        if prompt:
            stream.feed(self._end_of(prompt))
        return stream

    def _end_of(self, prompt: Sequence[int]) -> Sequence[int]:
        """From the last ordinary ids on: they end any run of bytes, and no space behind them is stripped."""
        num_spaces = 0
        for place in reversed(range(len(prompt))):
            text = self.texts[prompt[place]] if prompt[place] < len(self.texts) else ""
            if text:
                num_spaces += len(text)
                if num_spaces >= self.strip or not text.isspace():
                    return prompt[place:]
        return prompt

    def token_text(self, token_id: int) -> str:
        """See TokenTable."""
        if (value := self.byte_values.get(token_id)) is not None:
            return value.decode(errors="replace")
        return (self.texts[token_id] or "") if token_id < len(self.texts) else ""

    def token_bytes(self, token_id: int) -> bytes:
        """See TokenTable."""
        return self.byte_values.get(token_id) or self.token_text(token_id).encode()


class ByteFallbackDetokenizer:
    """Byte-fallback BPE: text for ordinary ids, characters out of runs of byte ids."""

    __slots__ = ("_run", "_strip", "_table", "_texts")

    def __init__(self, table: ByteFallbackTable) -> None:
        self._table = table
        self._texts = table.texts
        self._strip = table.strip
        # See `take_byte`.
        self._run: bytes | None = b""

    @property
    def is_at_rest(self) -> bool:
        """See Detokenizer."""
        return self._run == b"" and not self._strip

    def step(self, token_id: int) -> str:
        """See Detokenizer."""
        try:
            text = self._texts[token_id]
        except IndexError:
            return ""
        if text is None:
            text, self._run = take_byte(self._run, self._table.byte_values[token_id])
            return self._stripped(text)
        if not text:
            return ""
        if self._run != b"":
            text = self.flush() + text
        return self._stripped(text) if self._strip else text

    def feed(self, token_ids: Sequence[int]) -> list[str]:
        """See Detokenizer."""
        return [self.step(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """See Detokenizer."""
        text = rest_of_run(self._run)
        self._run = b""
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


def take_byte(run: bytes | None, value: bytes) -> tuple[str, bytes | None]:
    """A byte more in a run of byte tokens: the text that is now complete, and what waits for the rest.

    `tokenizer.decode` shows a run that is not valid UTF-8 as one U+FFFD per byte. So do we, except that
    a character which was complete before the run went wrong has been shown and stays. None: it went wrong.
    """
    if run is None:
        return REPLACEMENT, None
    data = run + value
    try:
        return utf8.decoded(data, "strict")
    except UnicodeDecodeError:
        return REPLACEMENT * len(data), None


def rest_of_run(run: bytes | None) -> str:
    """What a run shows of bytes that never became a character."""
    return REPLACEMENT * len(run or b"")
