"""What came from a target, as text that is safe to show: in a terminal, in a line, in a limited space.

A target chooses its names and messages. None of them may move a cursor, forge a line or reorder text.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString

WIDTH: Final = 160


def visible(text: str) -> str:
    """The text on one line, with control, format and surrogate characters spelled out."""
    return "".join(character if character.isprintable() else _spelled(character) for character in text)


def shortened(text: str, width: int = WIDTH) -> str:
    """At most `width` characters of the text."""
    return text if len(text) <= width else f"{text[:width]} …"


def brief(message: Message | bytes | None, width: int = WIDTH) -> str:
    """A message on one line."""
    if message is None:
        return "(stream)"
    text = repr(message) if isinstance(message, bytes) else MessageToString(message, as_one_line=True)
    return shortened(text, width)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
