"""The text of token ids, from the whole list each time: as slow and as plain as it can be.

Both tokenizers of the kit. Knows nothing about stop strings, messages and requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire.conformance.client_side.stage import alphabet

REPLACEMENT: Final = "\ufffd"
CONTINUATIONS: Final = (b"\x80", b"\xbf")
"""One of the two completes every beginning of a character."""


class NotTold(Exception):
    """The contract does not say what the text is, so nothing can be predicted."""


@dataclass(frozen=True, slots=True)
class Text:
    """`shown` stays whatever comes; `rest` is added when nothing comes, None where nobody says what."""

    shown: str
    rest: str | None = ""


def decode(tokens: Sequence[int], *, spaced: bool) -> Text:
    """The text of these tokens. Raises NotTold."""
    return _spaced(tokens) if spaced else _byte_level(tokens)


def _byte_level(tokens: Sequence[int]) -> Text:
    """All bytes behind each other; as in any decoder of UTF-8, a character that breaks off is one U+FFFD."""
    data = b"".join(map(alphabet.bytes_of, tokens))
    end = len(data) - _begun(data)
    return Text(data[:end].decode(errors="replace"), data[end:].decode(errors="replace"))


def _spaced(tokens: Sequence[int]) -> Text:
    """Characters are made of the bytes that follow each other, words are what they are."""
    text, runs = "", list(_runs(tokens))
    for is_bytes, data in runs[:-1]:
        text += "".join(_ended(data)) if is_bytes else data.decode()
    is_bytes, data = runs[-1] if runs else (False, b"")
    begun = _begun(data) if is_bytes else 0
    if not _is_text(data[: len(data) - begun]):
        return Text(text + "".join(_ended(data)))
    rest = REPLACEMENT * begun if begun < 2 else None
    return Text(text + data[: len(data) - begun].decode(), rest)


def _runs(tokens: Sequence[int]) -> Iterator[tuple[bool, bytes]]:
    run = b""
    for token in tokens:
        data = alphabet.bytes_of(token)
        if token < alphabet.NUM_BYTES:
            run += data
        elif data:
            if run:
                yield True, run
            yield False, data
            run = b""
    if run:
        yield True, run


def _ended(run: bytes) -> tuple[str, str]:
    """The characters of a run of bytes, and U+FFFD for what is behind them.

    Raises NotTold: tokenizers of this kind take back the whole run for one wrong byte, and nobody may.
    """
    end = next(end for end in range(len(run), -1, -1) if _is_text(run[:end]))
    if len(run) - end > 1:
        raise NotTold("one U+FFFD, or one per byte")
    return run[:end].decode(), REPLACEMENT * (len(run) - end)


def _begun(data: bytes) -> int:
    """How many bytes at the end begin a character that may still be completed."""
    return next((size for size in (3, 2, 1) if _begins(data[-size:], size)), 0)


def _begins(tail: bytes, size: int) -> bool:
    fillers = [filler * more for filler in CONTINUATIONS for more in (1, 2, 3)]
    return len(tail) == size and any(_is_character(tail + filler) for filler in fillers)


def _is_character(data: bytes) -> bool:
    return _is_text(data) and len(data.decode()) == 1


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
